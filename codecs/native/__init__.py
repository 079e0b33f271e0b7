"""The compiled kernels as Python sees them: which implementation runs (`choice`), the libraries, the structs
of their calls, and how a call is made. A codec that has several calls keeps them in its `native.py`. What
kernels must give is defined by the codecs in plain PyTorch, the `default` implementation.
"""
