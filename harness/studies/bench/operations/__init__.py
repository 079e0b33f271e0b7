"""The measured operations, a file for each family of kernels: `operations()` there yields the operations.

A new family is one more file, which `operation` finds; a test checks that every operator is measured.
"""
