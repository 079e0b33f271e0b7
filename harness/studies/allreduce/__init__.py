"""A single all-reduce: the time that a codec takes between real workers and on the simulated clock."""
