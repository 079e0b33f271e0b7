"""Tables and plots made from the records of runs."""
