"""A report on this machine, on missing software and hardware and what that disables: `python run.py
task=doctor`."""
