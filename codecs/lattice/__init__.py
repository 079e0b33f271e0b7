"""The lattice codec: exact integer sums on a lattice that all workers share, in codes of variable length.

`slots` places a bucket's super-groups, `rice` and `bits` write them, `prediction` foretells how many bits they take
and chooses the step, `sizes` decides how many bits messages get, `hops` does the work of a hop.
"""
