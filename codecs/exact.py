"""The uncompressed codecs: hop-wise sums in float32 or bfloat16, and the backend's own all-reduce.

BF16 is the reference of every comparison; it runs through the same hops as the quantizers. Its
partial sums are rounded to bfloat16 at each hop, as a bfloat16 all-reduce does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.costs import Costs, exact_costs
from gradwire.codecs.interface import Codec, Collectives, Round
from gradwire.codecs.sums import Cast, SliceCodec
from gradwire.codecs.traits import About, Traits


@dataclass
class FP32(SliceCodec):
    """Hop-wise sums in float32: exact up to rounding, 32 bits per coordinate."""

    name: str = "fp32"

    traits = Traits(unbiased=True)
    about = About("hop-wise float32 sums", "32")

    def coder(self, this_round: Round) -> Cast:
        return Cast(torch.float32)

    def costs(self, workers: int) -> Costs:
        return exact_costs(workers, wire=4)


@dataclass
class BF16(SliceCodec):
    """Hop-wise sums in bfloat16, rounded to nearest even at each hop: 16 bits per coordinate."""

    name: str = "bf16"

    about = About("hop-wise bfloat16 sums, the reference", "16")

    def coder(self, this_round: Round) -> Cast:
        return Cast(torch.bfloat16)

    def costs(self, workers: int) -> Costs:
        return exact_costs(workers, wire=2)


@dataclass
class Backend(Codec):
    """`all_reduce` of the process group's backend (gloo, NCCL), in the bucket's own dtype, to compare with.

    Not a fair baseline on CPUs: gloo's sums are compute-bound, and it can be neither paced nor hosted in one
    process. So it is a codec of its own and never called BF16.
    """

    name: str = "backend"

    traits = Traits(unbiased=True, uses_backend=True)
    about = About("the backend's own all-reduce", "not counted")

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.backend_sum(x / this_round.size)
