"""Utilities that every process of the harness needs: seeds, heartbeats, garbage collection, errors for
users.
"""
