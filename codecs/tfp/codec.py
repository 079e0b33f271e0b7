"""TFP: the first bits of floating-point numbers (AQGB §4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.costs import Costs, coder_costs, nearest
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.options.quantized import TFPOptions
from gradwire.codecs.slices import SliceCodec
from gradwire.codecs.tfp.coder import TruncationCoder
from gradwire.codecs.tfp.definition import BLOCK, SCALED_BITS, truncated_format
from gradwire.codecs.traits import About, Traits
from gradwire.codecs.wrappers.feedback import feedback_diverges

_LOST_SHARES = {2: 0.8, 3: 0.1}
"""By bits: the energy that stochastic rounding with block scales loses, relative to what it encodes, measured
where residuals are encoded.

With more bits residuals settled below 3 times the energy of the gradients, normal or heavy-tailed, among 32
workers along a ring. Truncation towards zero was not seen to let them grow without bound: with new gradients
every round they settled at 16 times with 2 bits, at 2 times with 3.
"""


@dataclass
class TFP(TFPOptions, SliceCodec):
    """The first `bits` of fp32 (from 10 on), fp16 (7 to 9), E4M3 (5, 6) or E2M1 (2 to 4), rounded anew at
    every hop; sent once by all ranks with `topology=broadcast`, which is AQGB's setting.

    Finite values stay finite: larger values are clamped to the format's largest. From 7 bits on, NaN and
    infinities are preserved; with fewer bits both become NaN, and with block scales the whole block does.
    Raises ValueError for settings outside their range.
    """

    about = About(
        "TFP (AQGB §4.4)", "`codec.bits`, and 0.5 for scales up to 6 bits", group="floating-point formats"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._format = truncated_format(self.bits)
        self._scaled = self.bits <= SCALED_BITS[self.scale]
        within_range = self._scaled or self.bits > SCALED_BITS["block"]
        self.traits = Traits(unbiased=self.rounding == "stochastic" and within_range, worst_vnmse=0.15)

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        if not self._scaled and self.bits <= SCALED_BITS["block"]:
            return (
                f"values beyond the range of {self.bits} bits are lost in every round; set codec.scale=block"
            )
        share = _LOST_SHARES.get(self.bits, 0.0) if self.rounding == "stochastic" else 0.0
        if not feedback_diverges(share, largest_sum):
            return None
        return (
            f"with codec.bits={self.bits} an encoding loses {100 * share:.0f} % of the energy, too much for "
            f"sums of {largest_sum} gradients; choose more bits, or codec.rounding=truncate"
        )

    def coder(self, this_round: Round) -> TruncationCoder:
        stochastic = self.rounding == "stochastic"
        random = CoordinateBits(this_round.key, this_round.rank, this_round.key_place) if stochastic else None
        return TruncationCoder(BLOCK, self.bits, self._format, self._scaled, random)

    def costs(self, workers: int) -> Costs:
        bits = nearest((4, 6) if self._scaled else (8, 12), self.bits)
        return coder_costs(workers, f"tfp.{bits}.{'scaled' if self._scaled else 'plain'}")
