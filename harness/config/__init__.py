"""Configuration: schemas, composition, validation, ids of runs, sweeps."""
