"""Worlds: all ranks of a run, as processes or inside one process, behind one interface."""
