"""The training loop: steps, data, evaluation, record. It reads from top to bottom in `loop.py`."""
