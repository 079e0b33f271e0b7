"""Reports what this machine has, what it lacks, and what that disables: `python run.py task=doctor`."""
