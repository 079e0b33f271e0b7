"""Time as a pure function: trace × network → timeline.

`plan` compiles what the ranks do into tables, `engine` runs them against links, `compute` and `codec_times`
say how long a rank's own work takes, `step` puts a step together.
"""
