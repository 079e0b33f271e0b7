"""Pipeline parallelism: each rank holds a stage, some consecutive layers, and sends activations to the next
stage.

Layers come from the model and messages from this package, so that every codec, world and network works with
it.
"""
