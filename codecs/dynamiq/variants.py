"""DynamiQ with other defaults: `dynamiq_plus`, and `uniform`, which has everything off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from gradwire.codecs.dynamiq.codec import DynamiQ
from gradwire.codecs.dynamiq.format import ScaleKind
from gradwire.codecs.dynamiq.rounding import Rounding
from gradwire.codecs.dynamiq.scales import ScaleRounding
from gradwire.codecs.dynamiq.values import WIDTHS, ValueKind
from gradwire.codecs.fields import at_least, list_of, one_of
from gradwire.codecs.traits import About


@dataclass
class DynamiQPlus(DynamiQ):
    """DynamiQ with better defaults: the same bits on the wire, a fraction of the error. Unbiased with
    `rounding="independent"`.

    What is different are defaults of DynamiQ's switches, each of which can be set back to the paper's:

        widths           more of them to choose from: bits go where they are worth most
        errors           measured ones decide that, not 4^−w: from 2 to 3 bits the error falls to an eighth
        values           distinct: no code is spent on a second zero
        codebooks        four, of which each super-group takes what fits it best
        group            32: half the scales are not worth what they cost
        scale_rounding   up: at 8 bits and above, random scales would be most of the error
        mean             not subtracted: that gains less than sending the means costs

    Each was measured to lower the vNMSE on most gradients of a GPT-2, a Llama and a BERT in training (0.1 to
    0.4 million parameters, rings and butterflies of 4 to 16 workers). So does a width of 1 bit, at 3 bits by
    up to three quarters; but it leaves some super-groups with many times more error than energy, so it is not
    the default.
    """

    name: str = "dynamiq_plus"

    widths: list[int] = list_of(
        [2, 3, 4, 5, 6, 8, 16], fewest=1, choices=WIDTHS, unique=True, hint="e.g. [2,4,8]"
    )
    """Bits per coordinate a super-group may get; a single one is given to all of them."""

    errors: str = one_of("powers", "measured", default="measured")
    """What a width's error is taken for when widths are chosen: as `measured`, or `powers` of four, 4^−w."""

    values: str = one_of(*get_args(ValueKind), default="distinct")
    """Quantization values: `distinct`, `nonuniform` (DynamiQ §3.3: two codes are zero), or `uniform`."""

    codebooks: int = one_of(1, 4, default=4)
    """Sets of values that each super-group chooses from: 4, or 1."""

    group: int = one_of(16, 32, default=32)
    """Coordinates that share a scale: 16 or 32."""

    scale_rounding: str = one_of(*get_args(ScaleRounding), default="ceil")
    """How group scales are rounded: up (`ceil`), or at random (`stochastic`)."""

    mean: bool = False
    """Subtract the workers' mean of each super-group, which is then sent in the first all-reduce."""

    about = About(
        group="quantized all-reduce",
        source="DynamiQ, improved",
        wire_bits="`codec.bits`",
        metadata="norm of super-groups of 256",
        unbiased_if="codec.rounding=independent",
    )


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

    values: str = one_of(*get_args(ValueKind), default="uniform")
    """Quantization values: `uniform`, `nonuniform` (DynamiQ §3.3), or `distinct`: non-uniform, none of them
    twice."""

    group: int = one_of(16, 32, default=32)
    """Coordinates that share a scale: 16 or 32."""

    scales: str = one_of(*get_args(ScaleKind), default="bf16")
    """`bf16`: one per group; `hierarchical`: one byte per group and one bf16 per super-group of 256."""

    scale_rounding: str = one_of(*get_args(ScaleRounding), default="ceil")
    """How group scales are rounded: up (`ceil`), or at random (`stochastic`)."""

    mean: bool = False
    """Subtract the workers' mean of each super-group, which is then sent in a first all-reduce."""

    rounding: str = one_of(*get_args(Rounding), default="independent")
    """`independent`, or `correlated` among the workers (DynamiQ §3.4)."""

    about = About(
        group="quantized all-reduce",
        source="DynamiQ §6.2, Table 6 (first row)",
        wire_bits="`codec.widths` + 16 / `codec.group` = 4.5",
    )
