"""The compiled kernels as Python sees them: which implementation runs (`choice`), the libraries (`loading`),
the structs of their calls (`structs`), and how a call is made (`call`).

A codec with several calls keeps them in its `native.py`. The codecs' definitions in plain PyTorch, the
`default` implementation, say what kernels must compute.
"""
