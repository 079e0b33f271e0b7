"""Time as a pure function: trace × network → timeline.

`plan` compiles the ranks' operations to tables, and the `engine`, compiled C++, simulates them on links with
`background` traffic. `compute` and `codec_times` give the durations of a rank's own work. `clock` puts a step
together, `build` makes a clock from a configuration.
"""
