"""One file per paper: its models and how it trains them.

Where a paper leaves something open, the docstring says so and states the reading taken here.
"""
