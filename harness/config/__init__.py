"""Configuration: schemas, composing, validating, run identity, sweeps."""
