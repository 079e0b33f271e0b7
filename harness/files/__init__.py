"""Files, read with bounds and types, and written whole or not at all."""
