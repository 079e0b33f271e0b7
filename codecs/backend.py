"""The communication library's own all-reduce, as a row to compare with.

Not a fair baseline on CPUs (gloo's sums are compute-bound, and it cannot be paced or hosted in one
process), so it is a codec of its own and never called BF16.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradwire.codecs.interface import Codec, Collectives, Round
from gradwire.codecs.traits import About, Traits


@dataclass
class Native(Codec):
    """`all_reduce` of the process group's backend, in the bucket's own dtype."""

    name: str = "native"

    traits = Traits(unbiased=True, uses_backend=True)
    about = About("the backend's own all-reduce", "not counted")

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.backend_sum(x / this_round.size)
