"""Data parallelism by blocks of layers: each is synchronized as soon as the backward pass has made it, and
updated just before the next forward pass uses it.

In reading order: `groups` for what a block is, `parallelism` for a step, `updates` for what it leaves to the
next one.
"""
