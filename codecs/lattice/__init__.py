"""The lattice codec: exact integer sums on a lattice that all workers share, in codes of variable length.

Reading order: `codec` (settings and a round), `slots` (the places of super-groups), `prediction` (how many
bits they will take, and the step D), `sizes` (how many bits messages get), `feedback` (how sizes follow
what was taken), `hops`, with `draws`, `sums` and `sink` (the work of a hop), `codes`, `rice`, `packed` and
`bits` (how integers are written). `python -m gradwire.codecs.lattice.measure_tables` makes `tables`.
"""
