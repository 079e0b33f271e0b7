"""Time: what is measured, what a step's trace holds, and what it would take on another network."""
