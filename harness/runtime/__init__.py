"""The needs of every process of the harness: seeds, heartbeats, garbage collection, errors for users."""
