"""Time: what is measured, what a step's trace holds, and how long it would take on another network."""
