"""The compiled kernels as Python sees them: the choice of an implementation (`choice`), the libraries and the
structs of their calls (`loading`), and the calls themselves (`call`).

The codecs' plain PyTorch code, the `default` implementation, defines what the kernels must compute.
"""
