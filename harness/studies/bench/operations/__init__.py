"""The measured operations, a file for each family of kernels: `operations()` there yields the operations.

A new family is one more file; `operation` finds it, and a test asks that every operator is in one.
"""
