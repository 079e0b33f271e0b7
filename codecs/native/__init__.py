"""The compiled kernels as Python sees them: the implementation that runs (`choice`), the libraries and the
structs of their calls (`loading`), and calls (`call`).

The codecs' definitions in plain PyTorch, the `default` implementation, say what kernels must compute.
"""
