"""A round of AQGB on all ranks of a world in this process, with decisions and clocks as a test gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, repeat

from codec_rounds import CPU, layout_of
from torch import Tensor

from gradwire.codecs.aqgb.codec import AQGB
from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Decision, Elapsed, Round
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import refinement, synchronization

SIZE = 3
LAYOUT = layout_of({"a": (300,), "b": (13, 7)})


def decided(first: int, more: int, deadline: float = 1.0, sent: Sequence[int] = ()) -> Decision:
    told = {"followed/sent": list(sent)} if sent else {}
    return {"first": [first], "more": [more], "deadlines": [deadline], "sent": [], **told}


def round_of(rank: int, decision: Decision) -> Round:
    return Round(5, LAYOUT, rank, SIZE, 0, 0, decision)


class Ranks:
    """A codec for each rank of a world in this process, and a clock for each of them."""

    def __init__(self, **options: object) -> None:
        self.codecs = [AQGB(**options) for _ in range(SIZE)]  # type: ignore[arg-type]
        self.world = VirtualWorld(SIZE, Fabric(partial(make_schedule, "broadcast")), CPU, debug=True)

    @property
    def key(self) -> Key:
        """The key of the step's random numbers."""
        return round_of(0, {}).key

    def synchronize(self, xs: Sequence[Tensor], decision: Decision) -> Tensor:
        rounds = {rank: round_of(rank, decision) for rank in range(SIZE)}
        means = self.world.run(
            {rank: synchronization(self.codecs[rank], xs[rank], own, True) for rank, own in rounds.items()}
        )
        return means[0]

    def refine(self, mean: Tensor, clocks: Sequence[Elapsed | None] = (None,) * SIZE) -> Tensor:
        means = self.world.run(
            {
                rank: refinement(codec, mean, round_of(rank, {}), clocks[rank], True)
                for rank, codec in enumerate(self.codecs)
            }
        )
        return means[0]


def times(*values: float) -> Elapsed:
    """A clock that shows these, and the last one for ever."""
    shown: Iterator[float] = chain(values, repeat(values[-1]))
    return lambda: next(shown)
