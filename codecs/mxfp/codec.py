"""MXFP8, MXFP6, MXFP4: hop-wise sums in microscaling formats (DynamiQ §5, Appendix C)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback, Numbers
from gradwire.codecs.collectives import Op
from gradwire.codecs.costs import MAXIMUM, Costs, hop_costs, moved, once
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Capture, Decision, Layout, Round
from gradwire.codecs.mxfp.definition import BLOCK, block_maxima
from gradwire.codecs.mxfp.formats import FORMATS, SharedScales
from gradwire.codecs.mxfp.hops import (
    BLOCKS_PER_UNIT,
    COUNTS,
    FIRST_DECISION,
    LARGEST_MU,
    MU,
    AutomaticScaling,
    CastCounts,
    MXFPHops,
    pair_of,
)
from gradwire.codecs.native.choice import without_kernels
from gradwire.codecs.options.quantized import MXFPOptions, ScaleRule
from gradwire.codecs.shards import Shard
from gradwire.codecs.slices import chunk_slice
from gradwire.codecs.traits import About, Traits


@dataclass
class MXFP(MXFPOptions, LossyHopCodec, Adapts):
    """Elements E4M3 (`mxfp8`), E3M2 (`mxfp6`) or E2M1 (`mxfp4`) in blocks of 32 with a common scale.

    A first all-reduce computes the blocks' maxima over the workers. The scales derived from them are used for
    the whole round, so partial sums stay in the element format. Raises ValueError for settings outside their
    range.
    """

    traits = Traits(stateful=True, worst_vnmse=0.1)
    first_decision = FIRST_DECISION
    decides = {MU: Numbers(0.0, LARGEST_MU, count=2)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._element = FORMATS[self.name]
        self.about = About(
            group="floating-point formats",
            source="OCP MX formats as adapted in DynamiQ §5, Appendix C",
            wire_bits=f"{self._element.width + 0.5}",
            metadata="maxima of blocks of 32, counts of casts",
            state="μ and its counts",
        )
        self._scaling = AutomaticScaling(self.epsilon, self.gamma, self.mu_minimum)
        self._counts = CastCounts()
        self._mu_places: dict[str, Tensor] = {}
        self._logged: Mapping[str, float] = {}

    def statistics(self, x: Tensor, this_round: Round) -> list[tuple[Tensor, Op]]:
        return [(block_maxima(x), "max_bits")]

    def plan(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> MXFPHops:
        workers, rule = this_round.size, cast(ScaleRule, self.scale_rule)
        mu, capture = self._scaling.mu(this_round.decision, workers), this_round.capture
        if capture is None:
            scales, count = SharedScales(reduced[0], mu, rule, workers), self._counts.of_round(x.device)
        else:
            bucket = this_round.layout.key
            place, count = self._mu_places[bucket], self._counts.of_captured(bucket)
            scales = SharedScales(reduced[0], mu, rule, workers, place)
            capture.kept.append((place, count))
            capture.before_launch.append(partial(self._begin_launch, bucket, capture, workers))
        return MXFPHops(x, workers, num_chunks, self._element, scales, count)

    def refuses_capture(self, layout: Layout) -> str | None:
        return without_kernels(layout.device)

    def prepare_capture(self, this_round: Round) -> None:
        layout = this_round.layout
        self._counts.fix(layout.key, layout.device)
        if layout.key not in self._mu_places:
            self._mu_places[layout.key] = torch.zeros(1, dtype=torch.float32, device=layout.device)

    def _begin_launch(self, bucket: str, capture: Capture, workers: int) -> None:
        """Writes the step's μ to where the bucket's captured round reads it."""
        self._mu_places[bucket].fill_(self._scaling.mu(capture.decision(), workers))
        self._counts.launched(bucket)

    def feedback(self) -> Feedback:
        """This rank's numbers of saturated casts and of all casts in the step, (2,) int64."""
        return {COUNTS: (self._counts.total(), "sum")}

    def refuses_decision(self, decision: Decision) -> str | None:
        """Refuses a decision whose second factor is positive before any factor was in use: a factor of 0
        means there was none yet."""
        wrong = [mu for mu in pair_of(decision) if 0 < mu < self.mu_minimum]
        if not wrong:
            return None
        return f"{MU} has {wrong[0]:.9g}, which is less than codec.mu_minimum={self.mu_minimum:g}"

    def decide(self, agreed: Agreed) -> Decision:
        self._logged = self._scaling.logged(agreed)
        return self._scaling.decide(agreed)

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        return chunk_slice(layout.numel, num_chunks, chunk, BLOCKS_PER_UNIT * BLOCK)

    def end_step(self, step: int) -> Mapping[str, float]:
        self._counts.forget()
        logged, self._logged = self._logged, {}
        return logged

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._counts.forget()

    def costs(self, workers: int) -> Costs:
        quantize, add, copy, dequantize = (
            once(f"mxfp.{name}.{self._element.width}") for name in ("quantize", "add", "copy", "dequantize")
        )
        return {
            "statistics": once("mxfp.maxima"),
            "metadata": moved(MAXIMUM / 32),
            "plan": quantize,
            **hop_costs(workers, copy, add, copy),
            "finish": dequantize,
        }
