"""TernGrad: each coordinate becomes 0 or ± the largest magnitude of its block (Wen et al., NIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.costs import Costs, coder_costs
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.options.quantized import TernGradOptions
from gradwire.codecs.qsgd import LevelCoder, lost_share
from gradwire.codecs.slices import SliceCodec
from gradwire.codecs.traits import About, Traits
from gradwire.codecs.wrappers.feedback import feedback_diverges


@dataclass
class TernGrad(TernGradOptions, SliceCodec):
    """Each coordinate becomes 0 or ± its block's largest magnitude, with the probability that makes it
    unbiased; this is repeated at every hop. It is QSGD with one level and the maximum norm.

    Unlike the paper's, the largest magnitude is each worker's own, it is taken over a block and not a layer,
    and gradients are not clipped. A value that is not finite makes its block NaN. Raises ValueError for
    settings outside their range.
    """

    traits = Traits(unbiased=True, worst_vnmse=30.0, large_error="one level beside zero")
    about = About("TernGrad (Wen et al., NIPS 2017)", "2 + 32/`codec.block`", group="sign and ternary")

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        share = lost_share(self.block, 1, "max")
        if not feedback_diverges(share, largest_sum):
            return None
        return (
            f"with codec.block={self.block} an encoding loses {100 * share:.0f} % of the energy, too much "
            f"for sums of {largest_sum} gradients; choose a smaller block, or codec=onebit"
        )

    def coder(self, this_round: Round) -> LevelCoder:
        return LevelCoder(
            self.block, 2, "max", CoordinateBits(this_round.key, this_round.rank, this_round.key_place)
        )

    def costs(self, workers: int) -> Costs:
        return coder_costs(workers, "levels.2")
