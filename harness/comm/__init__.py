"""Communication: schedules as data, transports, and all ranks of a run behind one interface."""
