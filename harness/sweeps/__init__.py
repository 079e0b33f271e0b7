"""Sweeps, from their declaration to their record. The modules in the order of reading:

`cells` derives a sweep's cells from its declaration, `cell_data` chooses the data of each cell, and
`planned_cell` composes and checks it. `request` holds what the command line asks for; `plan` has the cells of
that sweep and of the sweeps that it needs. `predictions` estimates their minutes, and `run` runs them.
`folder` names the directory of the tables, and `record` writes the sweep's record. `known` lists the axes of
all sweeps for claims.

Three parts are elsewhere, because other packages or Hydra need them there: `config/declared.py` defines the
form of a sweep's file, `report/sweep_record.py` reads a sweep's record, and `sweeper/` is where Hydra looks
for sweepers.
"""
