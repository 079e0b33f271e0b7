"""One file per paper: its models and how it trains them.

What a paper leaves open is said in the docstring, with the reading taken here.
"""
