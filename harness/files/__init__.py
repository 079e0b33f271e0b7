"""Reading files with limits on size and with checked types, and writing them atomically."""
