"""Time as a pure function: trace × network → timeline.

`plan` compiles what the ranks do into tables, `engine` runs them against links (`compiled` is its twin in
C++), with `background` traffic on them. `compute`, `codec_times` and, from another device's benchmark,
`bench_times` with the costs that a codec gives say how long a rank's own work takes. `clock` puts a step
together, `build` makes a clock from a configuration.
`rings` has plans of single rings.
"""
