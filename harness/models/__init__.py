"""Models: what they look like, and how they are built, found and saved."""
