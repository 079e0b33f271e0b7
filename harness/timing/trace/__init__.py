"""Traces: what each rank did in a step, in which order, and how long its own work took.

`log` writes it down as it happens, `notes` makes a `step` of it, `files` keeps it. `timed` gives a run's
steps with the times that count; `spans`, `chrome`, `messages` and `bandwidth` are what can be seen in them.
"""
