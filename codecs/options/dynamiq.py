"""The options of DynamiQ, `dynamiq_plus` and `uniform`, and the range of their bit budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from gradwire.codecs.fields import NUMBER, Rule, at_least, between, list_of, one_of
from gradwire.codecs.options.common import codec_at

Allocation = Literal["fast", "exact"]
Rounding = Literal["correlated", "independent"]
ScaleRounding = Literal["stochastic", "ceil"]
ValueKind = Literal["nonuniform", "uniform", "distinct"]

ScaleKind = Literal["hierarchical", "bf16"]
"""`hierarchical`: a uint8 per group and a bf16 per super-group (DynamiQ §3.3); `bf16`: a bf16 per group."""

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Every width there are values for."""

SUPER_GROUP = 256
"""Coordinates that share a bit width and a mean."""

BF16_BYTES = 2


@dataclass(frozen=True)
class Format:
    """The settings that determine the sizes and offsets of bytes in messages.

    `widths` (ascending) are the bits per coordinate that a super-group may get; `group` is the number of
    coordinates that share a scale. `mean` says whether the super-groups' means are subtracted, and therefore
    sent. Norms are sent if there are several widths. With several `codebooks`, a super-group's scale encodes
    which one it uses.
    """

    widths: tuple[int, ...] = (2, 4, 8)
    group: int = 16
    scales: ScaleKind = "hierarchical"
    mean: bool = True
    codebooks: int = 1

    @property
    def groups(self) -> int:
        """Groups of a super-group."""
        return SUPER_GROUP // self.group

    @property
    def norm(self) -> bool:
        """True if the super-groups' norms are sent."""
        return len(self.widths) > 1

    @property
    def group_scale_bytes(self) -> int:
        """Bytes of one group's scale."""
        return 1 if self.scales == "hierarchical" else BF16_BYTES

    @property
    def scale_bytes(self) -> int:
        """Bytes of all scales of one super-group."""
        shared = BF16_BYTES if self.scales == "hierarchical" else 0
        return self.groups * self.group_scale_bytes + shared

    @property
    def statistics_bytes(self) -> int:
        """Bytes of one super-group in the metadata message."""
        return BF16_BYTES * (self.mean + self.norm)

    @property
    def overhead_bits(self) -> float:
        """Bits per coordinate spent on scales and statistics: 0.6875 in the paper."""
        return 8 * (self.scale_bytes + self.statistics_bytes) / SUPER_GROUP


def budget_limits(message_format: Format) -> tuple[float, float]:
    """The smallest and the largest number of bits per coordinate that super-groups of this format can use."""
    widths, overhead = message_format.widths, message_format.overhead_bits
    return min(widths) + overhead, max(widths) + overhead


def format_of(fields: Mapping[str, Any]) -> Format:
    """The message format for the fields of a codec."""
    scales, widths = cast(ScaleKind, fields["scales"]), tuple(sorted(fields["widths"]))
    return Format(widths, fields["group"], scales, fields["mean"], fields["codebooks"])


@codec_at("dynamiq.codec:DynamiQ")
@dataclass
class DynamiQOptions:
    """Options of `DynamiQ`."""

    name: str = "dynamiq"

    bits: float | None = at_least(0, 5.0, 64)
    """Everything on the wire, in bits per coordinate: codes, scales and statistics. None with a single width:
    what that takes."""

    widths: list[int] = list_of([2, 4, 8], fewest=1, choices=WIDTHS, unique=True, hint="e.g. [2,4,8]")
    """Bits per coordinate a super-group may get; a single one is given to all of them."""

    allocation: str = one_of(*get_args(Allocation), default="fast")
    """Choice of widths: one threshold by counting (`fast`), or sorting without rounding (`exact`)."""

    errors: str = one_of("powers", "measured")
    """A width's error where widths are chosen: `powers` of four, 4^−w, as in the paper, or
    `measured` ones."""

    values: str = one_of(*get_args(ValueKind), default="nonuniform")
    """Quantization values: `nonuniform` (DynamiQ §3.3), `uniform`, or `distinct`: non-uniform, none of them
    twice."""

    epsilon_2: float = between(0.03, 0.5, 0.5, hint="0.5 is best on real gradients")
    """Non-uniformity of the quantization values at 2 bits, where it only matters if they are distinct."""

    epsilon_3: float = between(0.03, 0.5, 0.4, hint="0.4 is best on real gradients")
    """Non-uniformity at 3 bits."""

    epsilon_4: float = between(0.03, 0.5, 0.25, hint="0.25 is best on real gradients")
    """Non-uniformity at 4 bits."""

    epsilon_5: float = between(0.03, 0.5, 0.15, hint="0.15 is best on real gradients")
    """Non-uniformity at 5 bits."""

    epsilon_6: float = between(0.03, 0.5, 0.1, hint="0.1 is best on real gradients")
    """Non-uniformity at 6 bits."""

    epsilon_8: float = between(0.03, 0.5, 0.06, hint="0.06 is best on real gradients")
    """Non-uniformity at 8 bits."""

    codebooks: int = one_of(1, 4)
    """Sets of values that each super-group chooses from: 1, or 4 if values are distinct and scales
    hierarchical."""

    group: int = one_of(16, 32)
    """Coordinates that share a scale: 16 or 32."""

    scales: str = one_of(*get_args(ScaleKind), default="hierarchical")
    """`hierarchical`: one byte per group and one bf16 per super-group (DynamiQ §3.3); `bf16`: one a group."""

    scale_rounding: str = one_of(*get_args(ScaleRounding), default="stochastic")
    """Rounding of group scales: `stochastic` as in the paper, or `ceil` as in its authors' released
    code."""

    mean: bool = True
    """Subtract the workers' mean of each super-group, which is then sent in the first all-reduce."""

    rounding: str = one_of(*get_args(Rounding), default="correlated")
    """`correlated` among the workers, or `independent` (DynamiQ §3.4)."""

    exact_size: bool = False
    """Send only the bytes in use; message sizes then depend on the gradient. CPU only."""

    @classmethod
    def narrowed_rules(cls, fields: Mapping[str, Any]) -> dict[str, Rule]:
        """Limits `bits` to the budgets that these widths, scales and statistics can use."""
        made = format_of(fields)
        low, high = budget_limits(made)
        codes = " to ".join(f"{width}" for width in sorted({made.widths[0], made.widths[-1]}))
        hint = f"{codes} bits of code and {made.overhead_bits:g} of metadata per coordinate"
        single = len(made.widths) == 1
        return {"bits": Rule((NUMBER,), optional=single, low=low, high=high, hint=hint)}


@codec_at("dynamiq.codec:DynamiQPlus")
@dataclass
class DynamiQPlusOptions(DynamiQOptions):
    """Options of `DynamiQPlus`."""

    name: str = "dynamiq_plus"

    widths: list[int] = list_of(
        [2, 3, 4, 5, 6, 8, 16], fewest=1, choices=WIDTHS, unique=True, hint="e.g. [2,4,8]"
    )
    """Bits per coordinate a super-group may get; a single one is given to all of them."""

    errors: str = one_of("powers", "measured", default="measured")
    """A width's error where widths are chosen: as `measured`, or `powers` of four, 4^−w."""

    values: str = one_of(*get_args(ValueKind), default="distinct")
    """Quantization values: `distinct`, `nonuniform` (DynamiQ §3.3: two codes are zero), or `uniform`."""

    codebooks: int = one_of(1, 4, default=4)
    """Sets of values that each super-group chooses from: 4, or 1."""

    group: int = one_of(16, 32, default=32)
    """Coordinates that share a scale: 16 or 32."""

    scale_rounding: str = one_of(*get_args(ScaleRounding), default="ceil")
    """Rounding of group scales: up (`ceil`), or at random (`stochastic`)."""

    mean: bool = False
    """Subtract the workers' mean of each super-group, which is then sent in the first all-reduce."""


@codec_at("dynamiq.codec:UniformQuantization")
@dataclass
class UniformOptions(DynamiQOptions):
    """Options of `UniformQuantization`."""

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
    """Rounding of group scales: up (`ceil`), or at random (`stochastic`)."""

    mean: bool = False
    """Subtract the workers' mean of each super-group, which is then sent in a first all-reduce."""

    rounding: str = one_of(*get_args(Rounding), default="independent")
    """`independent`, or `correlated` among the workers (DynamiQ §3.4)."""
