"""DynamiQ: compressed multi-hop all-reduce. The modules in the order of the algorithm (DynamiQ §3):

- `codec`: the settings, and a round: statistics, their all-reduce, the arrangement, hops.
- `arrangement`: mean and norm of every super-group; from their sums over the workers to an order of
  super-groups and sizes of messages.
- `allocation`: norms and a budget to bit widths, and the measured errors of these.
- `format`: the parts of a message and their sizes, and its scales.
- `hops`: a hop of a chunk, whatever implements it; the sequence of hops of a bucket.
- `definition`: a hop in plain PyTorch. A row is scaled, given quantization values (`values`, or the best of
  several `codebooks`), rounded by a dither that the workers correlate, and packed.
- `native`: the plan and a hop in C++ and CUDA.
"""

from gradwire.codecs.dynamiq.codec import DynamiQ, DynamiQPlus, UniformQuantization

__all__ = ["DynamiQ", "DynamiQPlus", "UniformQuantization"]
