"""Time as a pure function: trace × network → timeline.

`plan` compiles what the ranks do into tables, and the `engine`, compiled C++, runs them against links, with
`background` traffic on them. `compute` and `codec_times` say how long a rank's own work takes. `clock` puts a
step together, `build` makes a clock from a configuration.
"""
