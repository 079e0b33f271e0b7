"""The options of the lattice codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gradwire.codecs.fields import at_least, between, one_of
from gradwire.codecs.options.common import codec_at

SlotCodeName = Literal["rice", "packed"]


@codec_at("lattice.codec:Lattice")
@dataclass
class LatticeOptions:
    """Options of `Lattice`."""

    name: str = "lattice"

    bits: float = between(2, 16, 5.0, hint="fewer leave nothing of the mean")
    """Everything on the wire, in bits per coordinate."""

    code: str = one_of(*get_args(SlotCodeName), default="rice")
    """The code of integers: `rice`, of variable length; `packed`, in whole bits by eight of them: cheaper,
    larger."""

    hold: int = at_least(1, 1, 10_000)
    """Steps for which sizes of messages stay as they are, once they follow gradients. Rounds that are
    captured keep their sizes, so these must not change in every step."""

    slot: int = one_of(16, 32, 64, 128, default=64)
    """The most super-groups of 256 coordinates that share a slot of fixed size: more of them differ less."""
