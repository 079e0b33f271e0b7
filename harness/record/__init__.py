"""The files that a run leaves on disk, from which all reported numbers are computed."""
