"""Topologies: who sends what to whom, as data."""
