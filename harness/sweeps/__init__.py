"""Sweeps, in the order of reading: `cells` makes cells of their text, `cell_data` chooses what these train on
and `planned_cell` checks each; `request` is a sweep as it is asked for, `plan` its cells and those of the
sweeps that it needs; `predictions` says how long they take, `run` starts them; `folder` is where their tables
go, `record` what is kept of them. `known` lists the sweeps of `sweeps/`, for claims.

Three parts lie where packages below this one, and Hydra, need them: `config/declared.py` is the form of a
sweep's file, which `config` checks in files of the user's own; `report/sweep_record.py` is the form of a
sweep's record, which reports read; `sweeper/` is where Hydra looks for sweepers.
"""
