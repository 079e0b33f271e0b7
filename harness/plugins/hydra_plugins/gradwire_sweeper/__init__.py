"""gradwire's sweeper: Hydra finds sweepers only in the namespace package `hydra_plugins`."""
