"""One all-reduce by itself: what a codec takes between real workers, and what the simulated clock says."""
