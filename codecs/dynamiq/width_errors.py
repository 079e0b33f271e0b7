"""What rounding to a width loses, measured: what widths are chosen by, and where error feedback diverges.

The share ω of the energy that an encoding loses decides on error feedback. What a worker keeps is encoded
again, with the next gradient, and a share ω of it lost again. Along a ring it is part of sums of 1 to n
gradients, (n + 1)/2 in the mean, so it outgrows the gradients if it is multiplied by ω·(n + 1)/2 ≥ 1 in each
round. With several widths ω varies: a super-group of the smallest width whose residual grows is given more
bits in a later round, by which it loses nearly all of that. Growth multiplies, so what counts is the
geometric mean over the widths that the budget pays for in turn.

That was measured once along rings of 2 to 32 workers with gradients that never change, 25 to 100 rounds each.
Settings that this accepts kept residuals of at most 130 times the energy of the gradients, most of them far
less, that no longer grew. Of those it refuses, 1 bit, and [1, 2, 4] at 2.5 bits on 8 workers, went beyond
10¹⁷ times; [2, 4, 8] at 2.8 bits was still growing at 10⁵; others stopped at 5 to 5000 times, where a
round's mean was mostly noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gradwire.codecs.options.dynamiq import ValueKind

WIDTH_ERRORS = {
    16: {1: 3.8, 2: 0.437, 3: 0.0564, 4: 0.0117, 5: 0.00274, 6: 6.81e-4, 8: 4.56e-5, 16: 7.5e-10},
    32: {1: 5.2, 2: 0.556, 3: 0.0709, 4: 0.0147, 5: 0.00347, 6: 8.55e-4, 8: 5.37e-5, 16: 9.6e-10},
}
"""By group: width to the error of one rounding over the energy, the mean over super-groups.

Values are distinct with the default non-uniformities, group scales rounded up: the median over gradients of a
GPT-2 (steps 0, 10, 40 and 100), a Llama and a BERT (steps 4 and 120) of 0.1 to 0.4 million parameters, of one
worker and of four together, at most 600 super-groups of each, those of zeros aside. These sets differ by
±15 %. Stochastic group scales add 3e-6 at 8 bits and 9e-6 at 16. Other values err 1.4 to 1.6 times as much
at 2 bits, 1.3 to 1.4 at 3 and up to 1.3 above.
"""

LOST_SHARES: dict[tuple[ValueKind, int], dict[int, float]] = {
    ("nonuniform", 16): {1: 3.56, 2: 0.70, 3: 0.0704, 4: 0.0128, 5: 2.8e-3, 6: 6.6e-4, 8: 4.5e-5, 16: 5.7e-6},
    ("nonuniform", 32): {1: 4.72, 2: 0.89, 3: 0.0878, 4: 0.0159, 5: 3.5e-3, 6: 8.3e-4, 8: 5.3e-5, 16: 4.6e-6},
    ("uniform", 16): {1: 3.56, 2: 0.70, 3: 0.0792, 4: 0.0145, 5: 3.2e-3, 6: 7.5e-4, 8: 5.0e-5, 16: 5.7e-6},
    ("uniform", 32): {1: 4.72, 2: 0.89, 3: 0.103, 4: 0.0188, 5: 4.1e-3, 6: 9.6e-4, 8: 6.2e-5, 16: 4.6e-6},
    ("distinct", 16): {1: 3.56, 2: 0.43, 3: 0.0557, 4: 0.0113, 5: 2.6e-3, 6: 6.4e-4, 8: 4.5e-5, 16: 5.7e-6},
    ("distinct", 32): {1: 4.72, 2: 0.55, 3: 0.0689, 4: 0.0141, 5: 3.3e-3, 6: 8.0e-4, 8: 5.3e-5, 16: 4.6e-6},
}
"""By quantization values and group: width to ω, the lost share of the energy of normally distributed
coordinates, rounded independently with hierarchical scales and the default non-uniformities."""


def lost_share(widths: Sequence[int], code_bits: float, kind: ValueKind, group: int) -> float:
    """ω where super-groups get `code_bits` of code per coordinate on average: the geometric mean over the two
    of the ascending `widths` that lie around it."""
    shares = LOST_SHARES[kind, group]
    if code_bits <= widths[0]:
        return shares[widths[0]]
    for a, b in pairwise(widths):
        if code_bits <= b:
            upper = (code_bits - a) / (b - a)
            return math.exp((1 - upper) * math.log(shares[a]) + upper * math.log(shares[b]))
    return shares[widths[-1]]
