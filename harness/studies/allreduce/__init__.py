"""One all-reduce by itself: how long a codec takes between real workers and on the simulated clock."""
