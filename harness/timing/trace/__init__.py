"""Traces: the operations of each rank in a step, in order, and the durations of its own work.

`log` records operations as they happen, and `notes` converts them to a `step`. `writer` and `files` store it
on disk, as `rows` in `blocks`. `spans`, `chrome`, `messages` and `bandwidth` are views of it.
`record/timed_steps.py` returns a run's steps with the final times.
"""
