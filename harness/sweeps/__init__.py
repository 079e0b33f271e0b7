"""Sweeps, in the order of reading: their text becomes `cells`; `cell_data` chooses what these train on and
`planned_cell` checks each; `plan` puts them together, `predictions` says how long they take, `run` starts
them; `folder` is where their tables go, `record` what is kept of them. `known` lists the sweeps of `sweeps/`.

Three parts lie where packages below this one need them: `config/declared.py` is the form of a sweep's file,
which `config` checks in files of the user's own; `report/sweep_record.py` is the form of a sweep's record,
which reports read; and `sweeper/` is where Hydra looks for sweepers.
"""
