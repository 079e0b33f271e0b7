"""Data parallelism by blocks of layers: each block is synchronized as soon as the backward pass has computed
its gradient, and updated just before the next forward pass uses it.

Reading order: `groups` (the blocks), `parallelism` (a step), `updates` (the updates that a step leaves to the
next one).
"""
