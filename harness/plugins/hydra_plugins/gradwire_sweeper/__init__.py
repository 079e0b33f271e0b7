"""Hydra finds sweepers only in the namespace package `hydra_plugins`; this one is ours."""
