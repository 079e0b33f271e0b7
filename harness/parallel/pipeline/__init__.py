"""Pipeline parallelism: each rank holds a stage, some consecutive layers, and passes activations on.

The layers are the model's, the messages our own, so that every codec, world and network works with it.
"""
