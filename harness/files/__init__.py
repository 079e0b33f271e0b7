"""Reads files within bounds and types, and writes them whole or not at all."""
