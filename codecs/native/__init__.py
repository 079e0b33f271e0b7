"""The compiled kernels as Python sees them: libraries, how they are called, and the operators of PyTorch that
they stand behind. Each codec's own calls are in its `native.py`; what they must give is defined by its code
in plain PyTorch, the `default` implementation.
"""
