"""A codec from outside the package whose decisions follow the clock, and a rank of a real run with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from training_jobs import train_rank

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.interface import Codec, Decision, Observation, Round
from gradwire.codecs.registry import register_codec
from gradwire.codecs.traits import Traits
from gradwire.harness.trainer.settings import RunConfig


@register_codec
@dataclass
class ClockDriven(Codec, Adapts):
    """The mean, larger by as many millionths as communication took microseconds, modulo 997."""

    name: str = "clock_driven"

    traits = Traits(stateful=True, clock_driven=True)
    first_decision = {"millionths": 0, "fraction": 0.0}

    def __post_init__(self) -> None:
        self._observed = torch.zeros(2, dtype=torch.int64)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        (total,) = await comm.reduce([(x, "sum")])
        millionths = this_round.decision["millionths"]
        assert isinstance(millionths, int)
        return total * (1 + 1e-6 * millionths) / this_round.size

    def observe(self, observations: Sequence[Observation]) -> None:
        for each in observations:
            assert each.end >= each.start
            if each.phase != "compute":
                self._observed[0] += round((each.end - each.start) * 1e6)
                self._observed[1] += each.num_bytes

    def feedback(self) -> Feedback:
        return {"microseconds_and_bytes": (self._observed.clone(), "sum")}

    def decide(self, agreed: Agreed) -> Decision:
        microseconds, _ = agreed.feedback["microseconds_and_bytes"].tolist()
        return {"millionths": microseconds % 997, "fraction": microseconds / 3}

    def end_step(self, step: int) -> Mapping[str, float]:
        self._observed.zero_()
        return {}


def train_rank_by_the_clock(rank: int, size: int, config: RunConfig, directory: str) -> bool:
    """`train_rank` in a process that has imported the codec."""
    return train_rank(rank, size, config, str(Path(directory)))
