"""Topologies as data: which rank sends which chunks to which rank."""
