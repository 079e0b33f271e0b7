"""The report on this machine, on what it lacks and what that disables: `python run.py task=doctor`."""
