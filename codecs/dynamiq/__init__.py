"""DynamiQ: compressed multi-hop all-reduce. The modules in the order of the algorithm (DynamiQ §3):

- `codec`: the settings, and a round: statistics, their all-reduce, the arrangement, hops.
- `variants`: the same codec with other defaults, `dynamiq_plus` and `uniform`.
- `statistics`: mean and norm of every super-group, and what their sums over the workers say.
- `allocation`: norms and a budget to bit widths; `width_errors` has what rounding to a width
  loses, measured.
- `arrangement`: widths to an order of super-groups and sizes of messages.
- `format`: what is where in a message, and how large it may be.
- `hops`: a hop of a chunk, whatever implements it; the sequence of hops of a bucket.
- `definition`: a hop in plain PyTorch. A row is scaled (`scales`), given quantization values (`values`, or
  the best of several `codebooks`), rounded by a dither that the workers correlate (`rounding`), and packed.
- `native`: the plan and a hop in C++ and CUDA; `native_values` tells it the quantization values, `kept` has
  what rounds of a bucket have in common.
"""

from gradwire.codecs.dynamiq.codec import DynamiQ
from gradwire.codecs.dynamiq.variants import DynamiQPlus, UniformQuantization

__all__ = ["DynamiQ", "DynamiQPlus", "UniformQuantization"]
