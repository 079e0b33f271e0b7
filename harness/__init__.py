"""The experiment harness: topologies, transports, collectives, parallelisms, trainer, reports."""
