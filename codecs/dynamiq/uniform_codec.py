"""Uniform hop-wise quantization: DynamiQ with everything off, the first row of its Table 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from gradwire.codecs.dynamiq.codec import DynamiQ
from gradwire.codecs.dynamiq.format import Scales
from gradwire.codecs.dynamiq.rounding import Rounding
from gradwire.codecs.dynamiq.scaling import ScaleRounding
from gradwire.codecs.dynamiq.tables import WIDTHS, Kind
from gradwire.codecs.fields import at_least, list_of, one_of
from gradwire.codecs.interface import About


@dataclass
class UniformQuantization(DynamiQ):
    """Equidistant values of a fixed bit width in groups of 32 with a bf16 scale, rounded independently and
    re-quantized at every hop; no metadata.

    The rows of DynamiQ's Table 6 that follow are `values=nonuniform`; then `widths=[2,4,8]` with `bits`; then
    `scales=hierarchical group=16`; then `rounding=correlated`.
    """

    name: str = "uniform"

    bits: float | None = at_least(0, None, 64)
    """Everything on the wire, in bits per coordinate: codes, scales and statistics. None with a single width:
    what that takes."""

    widths: list[int] = list_of([4], fewest=1, choices=WIDTHS, unique=True, hint="e.g. [2,4,8]")
    """Bits per coordinate; of several, each super-group gets one."""

    values: str = one_of(*get_args(Kind), default="uniform")
    """Quantization values: `uniform`, `nonuniform` (DynamiQ §3.3), or `distinct`: non-uniform, none of them
    twice."""

    group: int = one_of(16, 32, default=32)
    """Coordinates that share a scale: 16 or 32."""

    scales: str = one_of(*get_args(Scales), default="bf16")
    """`bf16`: one per group; `hierarchical`: one byte per group and one bf16 per super-group of 256."""

    scale_rounding: str = one_of(*get_args(ScaleRounding), default="ceil")
    """Of group scales: up (`ceil`), or at random (`stochastic`)."""

    mean: bool = False
    """Subtract the workers' mean of each super-group, which is then sent in a first all-reduce."""

    rounding: str = one_of(*get_args(Rounding), default="independent")
    """`independent`, or `correlated` among the workers (DynamiQ §3.4)."""

    about = About(
        source="DynamiQ §6.2, Table 6 (first row)",
        wire_bits="`codec.widths` + 16 / `codec.group` = 4.5",
    )
