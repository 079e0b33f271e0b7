"""The files that a run leaves on disk: the source of truth of every number reported."""
