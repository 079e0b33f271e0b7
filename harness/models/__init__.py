"""Models: their settings and shapes, and how they are built, found and saved."""
