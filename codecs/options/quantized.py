"""Options of the codecs that send every coordinate in few bits: levels, signs, cut or small floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gradwire.codecs.fields import TEXT, WHOLE, Rule, at_least, between, number_or_pair, one_of
from gradwire.codecs.options.common import codec_at

GROUP_SIZES = tuple(1 << power for power in range(3, 17))
"""Powers of two, so that groups are whole bytes and `groups.fold` their sums."""

Norm = Literal["l2", "max"]
TruncationRounding = Literal["stochastic", "truncate"]
Scale = Literal["block", "all", "none"]
AQGBBase = Literal["embedded", "plain"]
ElementName = Literal["mxfp8", "mxfp6", "mxfp4"]
ScaleRule = Literal["bf16_mu", "e8m0_floor", "e8m0_even", "e8m0_ceil"]

LARGEST_ROTATION = 1 << 24
"""Values of the longest row that a Hadamard transform takes."""

LARGEST_BITS = 16
"""The most bits of a sum of THC on the wire."""

PARTITIONS = tuple(1 << power for power in range(8, 17))
"""Coordinates of a partition of AQGB: multiples of 256, so that every encoding of one is a whole number of
bytes and scales."""

SMALLEST_PACKET = 512
"""Bytes: what every IPv4 host takes, headers excluded."""

LARGEST_PACKET = 65_507
"""Bytes that a UDP datagram can carry over IPv4."""

PLANNED = ("floor", "margin_s", "gain", "rate_gain", "step_bits", "leftovers")
"""The settings of AQGB's plan."""


BITS = (4, 8)

GROUPS = (32, 64, 128, 256, 512, 1024, 2048)
"""Coordinates that share a scale: whole blocks, and whole groups in what a kernel treats at a time."""

ScaleType = Literal["float32", "bfloat16"]
LinearRounding = Literal["nearest", "stochastic"]


@codec_at("mxfp.codec:MXFP", "mxfp8", "mxfp6", "mxfp4")
@dataclass
class MXFPOptions:
    """Options of `MXFP`."""

    name: str = one_of(*get_args(ElementName), default="mxfp8")

    scale_rule: str = one_of(*get_args(ScaleRule), default="bf16_mu")
    """From maximum to scale: `bf16_mu` (the paper's), `e8m0_floor` (OCP), `e8m0_even`, `e8m0_ceil`."""

    epsilon: float = between(0, 1, 1e-5, hint="1e-5 is FP8-LM's")
    """Share of saturated casts beyond which μ doubles (FP8-LM's 0.001 %)."""

    gamma: float = between(0.5, 1, 0.99, hint="close to 1; 1 keeps μ from falling")
    """Factor of μ otherwise."""

    mu_minimum: float = between(0.001, 1000, 1.0, hint="1 scales by the largest gradient")
    """μ, which starts at the number of workers, falls no further. Below 1 single gradients saturate."""


@codec_at("thc.codec:THC")
@dataclass
class THCOptions:
    """Options of `THC`."""

    name: str = "thc"

    block: int = between(0, LARGEST_ROTATION, 0)
    """Coordinates rotated together, a power of two; 0: as many as fit, up to 2²⁴."""

    norm: str = one_of("block", "bucket")
    """Norms that ranges follow: each `block`'s, or the `bucket`'s, whose blocks then share a range."""

    t_p: float = between(0.5, 4096, 2.154, hint="2.154 clamps 1 of 32 coordinates")
    """Coordinates are clamped to t_p standard deviations: p = 1/32 of a normal distribution lie beyond."""

    quantization_bits: int = between(1, 8, 4, hint="4 is THC's choice")
    """A worker's coordinate becomes one of 2^quantization_bits values."""

    table: str = one_of("uniform", "nonuniform")
    """The values: `uniform`, or `nonuniform`, the best multiples of 1/granularity of the range."""

    granularity: int = between(1, 255, 30, hint="30 is THC's for 4 bits")
    """The granularity of the nonuniform table: a coordinate adds up to this much to a sum."""

    bits: int | str = one_of("auto", *range(1, LARGEST_BITS + 1))
    """Bits on the wire, per sum; `auto`: 8 for up to 8 workers, 12 for more, and more where sums need it."""

    @classmethod
    def narrowed_rules(cls, fields: Mapping[str, Any]) -> dict[str, Rule]:
        """Requires a nonuniform table to have as many different values as its number of bits allows."""
        low = (1 << fields["quantization_bits"]) - 1 if fields["table"] == "nonuniform" else 1
        return {"granularity": Rule((WHOLE,), low=low, high=255, hint="30 is THC's for 4 bits")}


@codec_at("qsgd:QSGD")
@dataclass
class QSGDOptions:
    """Options of `QSGD`."""

    name: str = "qsgd"

    bits: Any = number_or_pair(2, 16, 8, hint="AQGB compares with 4 and 8, and with [2,8]")
    """Bits of code per coordinate: a sign and 2^(bits − 1) − 1 levels above zero. Of two widths, each
    coordinate has either by chance."""

    group: int = one_of(*GROUP_SIZES, default=512)
    """Coordinates that share a norm, a power of two. QSGD's word is bucket, which is something else here."""

    norm: str = one_of(*get_args(Norm), default="l2")
    """`l2`, which the paper analyses, or `max`, which has less variance at few bits."""


@codec_at("tfp.codec:TFP")
@dataclass
class TFPOptions:
    """Options of `TFP`."""

    name: str = "tfp"

    bits: int = between(2, 32, 4, hint="AQGB sends 4 or more")
    """Bits per coordinate, 2 to 32; without loss at 32. The default is the least that AQGB sends."""

    rounding: str = one_of(*get_args(TruncationRounding), default="stochastic")
    """`stochastic`: up with the probability that makes it unbiased, helpful at few bits by the paper;
    `truncate`: towards zero, sufficient at many."""

    scale: str = one_of(*get_args(Scale), default="block")
    """Formats with a bf16 scale for every 32 coordinates: `block`, those below fp16, `all` fp16's 7 to 9
    bits as well, whose steps of 2⁻¹⁷ to 2⁻¹⁵ are large for the gradients of large models, or `none`."""


@codec_at("aqgb.codec:AQGB")
@dataclass
class AQGBOptions:
    """Options of `AQGB`."""

    name: str = "aqgb"

    floor: float = between(2 / 32, 1, 0.125, hint="0.125, 4 bits of 32, is the paper's")
    """The least ratio at which a block is sent, q̄."""

    margin_s: float = at_least(0, 0.02, 60)
    """Seconds before a block's use when its refinement ends."""

    gain: float = between(0.01, 1, 0.3)
    """The weight of a new step in the averages of times."""

    rate_gain: float = between(0.01, 1, 0.7)
    """The weight of a new step in the average of the rate."""

    partition: int = one_of(*PARTITIONS, default=1024)
    """Coordinates of a partition. On a simulated network a message gives way to a more urgent one where a
    multiple of a partition's bytes in full has been carried."""

    packet: int = between(
        SMALLEST_PACKET, LARGEST_PACKET, LARGEST_PACKET, hint="a UDP datagram carries 65507"
    )
    """Bytes of a packet at most, into which partitions are packed."""

    base: str = one_of(*get_args(AQGBBase))
    """The numbers that are cut: `embedded`, fixed-point numbers, of which any number of bits can be refined;
    or `plain`, floating-point numbers as in AQGB §4.4, whose refinement begins anew below 10 bits."""

    rounding: str = one_of("truncate", "stochastic")
    """In the first stage: `truncate`, towards zero, or with base=plain `stochastic`, unbiased."""

    scale: str = one_of(*get_args(Scale))
    """With base=plain, the formats with a bf16 scale for every 32 coordinates, as in `codec=tfp`; the paper
    prints `none`."""

    bits: int | None = between(2, 32, None)
    """Bits of every coordinate, not refined, in place of the ratio that follows the network (null)."""

    step_bits: int = between(1, 32, 8)
    """Bits of a refinement that are sent at a time, 10 at first where it begins anew; before each of these a
    rank looks at the clock."""

    leftovers: str = one_of("kept", "requantized")
    """The bits of a block's leftovers when the next block appears: `kept` leaves the block's own,
    `requantized` takes those of the new block, as in AQGB §4.2."""

    @classmethod
    def narrowed_rules(cls, fields: Mapping[str, Any]) -> dict[str, Rule]:
        """Cuts fixed-point numbers towards zero, each with its block's scale; fixed bits replace the plan."""
        planned = cls._rules_of_plan(fields["bits"])
        if fields["base"] == "plain":
            return planned
        rounds = "what base=embedded rounds up is no prefix of more bits; codec.base=plain has stochastic"
        scales = "base=embedded has a scale for every block; codec.base=plain has all and none"
        return {
            **planned,
            "rounding": Rule((TEXT,), choices=("truncate",), hint=rounds),
            "scale": Rule((TEXT,), choices=("block",), hint=scales),
        }

    @classmethod
    def _rules_of_plan(cls, bits: int | None) -> dict[str, Rule]:
        """The settings of AQGB's plan keep their defaults if fixed `bits` replace it."""
        if bits is None:
            return {}
        fix = f"codec.bits={bits} replaces AQGB's plan, which {{}} is part of; leave one of them out"
        return {name: Rule((), choices=(getattr(cls, name),), hint=fix.format(name)) for name in PLANNED}


@codec_at("terngrad:TernGrad")
@dataclass
class TernGradOptions:
    """Options of `TernGrad`."""

    name: str = "terngrad"

    block: int = one_of(*GROUP_SIZES, default=512)
    """Coordinates that share a largest magnitude, a power of two; larger blocks have more variance."""


@codec_at("onebit:OneBit")
@dataclass
class OneBitOptions:
    """Options of `OneBit`."""

    name: str = "onebit"

    block: int = one_of(*GROUP_SIZES, default=512)
    """Coordinates that share the two means, a power of two."""


@codec_at("linear.codec:Linear")
@dataclass
class LinearOptions:
    """Options of `Linear`."""

    name: str = "linear"

    bits: int = one_of(*BITS)
    """Bits of a code: 4 or 8."""

    group: int = one_of(*GROUPS, default=128)
    """Coordinates that share a scale, a power of two."""

    scales: str = one_of(*get_args(ScaleType))
    """The type of a scale: `float32`, or `bfloat16`, rounded up."""

    hadamard: str = one_of("none", "fused")
    """`fused`: what is quantized is the Hadamard transform of every 32 coordinates (SDP4Bit §3.2.2)."""

    rounding: str = one_of(*get_args(LinearRounding))
    """`nearest`, or `stochastic`, which is unbiased."""


@codec_at("all_to_all:AllToAll")
@dataclass
class AllToAllOptions:
    """Options of `AllToAll`."""

    name: str = "all_to_all"

    bits_local: int = one_of(*BITS, default=8)
    """Bits of a code inside nodes: 4 or 8."""

    bits_node: int = one_of(*BITS, default=4)
    """Bits of a code between nodes: 4 or 8."""

    group: int = one_of(*GROUPS, default=128)
    """Coordinates that share a scale, a power of two."""

    scales: str = one_of(*get_args(ScaleType))
    """The type of a scale: `float32`, or `bfloat16`, rounded up."""

    hadamard: str = one_of("fused", "apart", "none")
    """The smoother: `fused` with quantization; `apart`, in passes of its own, with the same result but for
    rounding; or `none`."""

    rounding: str = one_of(*get_args(LinearRounding))
    """`nearest`, as in SDP4Bit, or `stochastic`, which is unbiased."""
