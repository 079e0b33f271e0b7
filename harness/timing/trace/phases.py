"""The phases of a round, which messages, bytes and times are counted under."""

MEASURE = "measure"
"""The phase of messages that belong to the measurement: neither counted nor paced."""

BACKEND = "backend"
"""The phase of what the communication library does by itself, message by message unknown to us."""

PHASES = ("metadata", "reduce_scatter", "all_gather")
"""The phases that bytes are counted under."""
