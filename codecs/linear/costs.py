"""What linear quantizers cost, in operations of `task=bench`, which has groups of 128 and 2048."""

from __future__ import annotations

from gradwire.codecs.costs import Cost, nearest, once
from gradwire.codecs.linear.quantizer import LinearQuantizer

MESSAGES = 4
"""How many messages `linear.reduce` of the benchmark sums."""

_GROUPS = (128, 2048)


def quantizing(quantizer: LinearQuantizer) -> Cost:
    """The cost per coordinate that is written to a message. Random bits cost more than the number of bits or
    the transform do: the benchmark has them at 4 bits, without it."""
    if quantizer.rounding == "stochastic":
        return once("linear.quantize_stochastic.4")
    return once(_named("quantize", quantizer))


def dequantizing(quantizer: LinearQuantizer) -> Cost:
    """The cost per coordinate of a message that is decoded."""
    return once(_named("dequantize", quantizer))


def adding(quantizer: LinearQuantizer) -> Cost:
    """The cost per coordinate of a message that is added; the benchmark has it without the transform."""
    return once(f"linear.add.{quantizer.bits}")


def reducing(bits: int, transformed: bool) -> Cost:
    """The cost per coordinate of each of several messages that are summed."""
    return once(f"linear.reduce{'_hadamard' if transformed else ''}.{bits}") * (1 / MESSAGES)


def _named(operation: str, quantizer: LinearQuantizer) -> str:
    if quantizer.hadamard:
        return f"linear.{operation}_hadamard.{quantizer.bits}"
    group = nearest(_GROUPS, quantizer.group)
    return f"linear.{operation}.{quantizer.bits}{'' if group == _GROUPS[0] else f'.{group}'}"
