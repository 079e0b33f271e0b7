"""Time: measuring it, the trace of a step, and the time a step would take on another network."""
