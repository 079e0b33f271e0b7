"""signSGD with majority vote (Bernstein et al., ICML 2018), a codec that declares what it is not.

PYTHONPATH=examples/plugins python run.py size=tiny codec=signsgd:SignSGD
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import gradwire
from gradwire.codecs.arithmetic.bitpack import pack, unpack


@dataclass
class SignSGD(gradwire.Codec):
    """The sign that most workers' coordinates have; a tie, and zero, count as positive.

    The result says nothing of magnitudes, and a value that is not finite is a sign like any other.
    """

    name: str = "signsgd"

    about = gradwire.About(source="Bernstein et al. 2018", wire_bits="1 to each other worker")
    traits = gradwire.Traits(
        keeps_zeros=False,
        follows_magnitude=False,
        shows_nonfinite=False,
        worst_vnmse=math.inf,
        large_error="signs say nothing of magnitudes",
    )

    async def synchronize(self, x: Tensor, this_round: gradwire.Round, comm: gradwire.Collectives) -> Tensor:
        padded = torch.nn.functional.pad(x >= 0, (0, -x.numel() % 8)).to(torch.int32)
        own = torch.empty(padded.numel() // 8, dtype=torch.uint8, device=x.device)
        pack(padded, 1, own)
        votes = torch.stack([unpack(message, 1) for message in await comm.all_gather(own)]).sum(0)
        majority = votes[: x.numel()] * 2 >= this_round.size
        return torch.where(majority, 1.0, -1.0).to(x.dtype)
