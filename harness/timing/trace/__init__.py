"""Traces: what each rank did in a step, in which order, and how long its own work took.

`log` writes it down as it happens, and `notes` makes a `step` of it. `writer` and `files` keep it on disk, as
`rows` in `blocks`. `spans`, `chrome`, `messages` and
`bandwidth` are what can be seen in it. record/timed_steps.py gives a run's steps with the times that count.
"""
