"""Communication, from schedules as data up to all ranks of a run behind one interface."""
