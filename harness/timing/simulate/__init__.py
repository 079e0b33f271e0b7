"""Time as a pure function: trace × network → timeline.

`plan` compiles what the ranks do into tables, `engine` runs them against links (`compiled` is its twin in
C++), with `rivals` on them. How long a rank's own work takes say `compute`, `codec_times` and, from another
device's benchmark, `bench_times` by the costs that a codec gives. `clock` puts a step together, `build` makes
a clock from a configuration. `rings` has plans of single rings.
"""
