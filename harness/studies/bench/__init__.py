"""The speed of the codecs' operations, next to a copy's and to that of their definition."""
