"""The uncompressed codecs: hop-wise sums in float32 or bfloat16, and the backend's own all-reduce.

BF16 is the reference of every comparison; it runs through the same hops as the quantizers. Its
partial sums are rounded to bfloat16 at each hop, as a bfloat16 all-reduce does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.casts import UNIT, CastHops
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.costs import Costs, exact_costs
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.shards import Shard
from gradwire.codecs.slices import chunk_slice
from gradwire.codecs.traits import About, Traits


class ExactSums(LossyHopCodec):
    """Hop-wise sums that travel as they are, in `wire` numbers: a base class."""

    wire: ClassVar[torch.dtype]

    def hops(self, x: Tensor, this_round: Round, num_chunks: int) -> CastHops:
        return CastHops(x, this_round.size, num_chunks, self.wire)

    def refuses_capture(self, layout: Layout) -> str | None:
        return None

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        return chunk_slice(layout.numel, num_chunks, chunk, UNIT)

    def costs(self, workers: int) -> Costs:
        return exact_costs(workers, self.wire.itemsize)


@dataclass
class FP32(ExactSums):
    """Hop-wise sums in float32: exact up to rounding, 32 bits per coordinate."""

    name: str = "fp32"

    wire = torch.float32
    traits = Traits(unbiased=True, worst_vnmse=1e-10)
    about = About("hop-wise float32 sums", "32", group="uncompressed")


@dataclass
class BF16(ExactSums):
    """Hop-wise sums in bfloat16, rounded to nearest even at each hop: 16 bits per coordinate."""

    name: str = "bf16"

    wire = torch.bfloat16
    traits = Traits(worst_vnmse=1e-4)
    about = About("hop-wise bfloat16 sums, the reference", "16", group="uncompressed")


@dataclass
class Backend(Codec):
    """`all_reduce` of the process group's backend (gloo, NCCL), in the bucket's own dtype, for comparison.

    On CPUs this is not a fair baseline: gloo's sums are compute-bound, and gloo can be neither paced nor
    hosted in one process. So it is a separate codec and never called BF16.
    """

    name: str = "backend"

    traits = Traits(unbiased=True, uses_backend=True, worst_vnmse=1e-4)
    about = About("the backend's own all-reduce", "not counted", group="uncompressed")

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        return None

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.backend_sum(x / this_round.size)
