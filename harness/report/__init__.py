"""Tables and plots rebuilt from the records of runs."""
