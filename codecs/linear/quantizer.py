"""Settings of a linear quantizer, its operations on flat buffers (SDP4Bit §2.3, §3; ZeRO++) and their costs
in operations of `task=bench`, which has groups of 128 and 2048.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from gradwire.codecs.arithmetic.random import PER_COUNTER, CoordinateBits, Key
from gradwire.codecs.costs import Cost, nearest, once
from gradwire.codecs.linear.definition import (
    BLOCK,
    MessageFormat,
    linear_add,
    linear_dequantize,
    linear_quantize,
    linear_reduce,
)
from gradwire.codecs.options.quantized import LinearRounding, ScaleType

LARGEST = PER_COUNTER << 32
"""Coordinates that have bits of their own."""


@dataclass(frozen=True)
class RoundingNoise:
    """One rank's randomness in one step: `key` is the step's (`random.stream_key`), `draw`, an unsigned
    32-bit word, distinguishes quantizations of the same coordinates (0 inside nodes, 1 between)."""

    key: Key
    rank: int
    draw: int = 0

    @property
    def bits(self) -> CoordinateBits:
        return CoordinateBits((self.key[0], self.key[1] ^ self.draw), self.rank)


@dataclass(frozen=True)
class LinearQuantizer:
    """Codes of `bits` bits relative to the largest magnitude of every `group` coordinates.

    Buffers are flat, contiguous, float32 or bfloat16, of any length; a message is (message_bytes(numel),)
    uint8 at a multiple of 16 bytes (see `definition` for its contents). Raises ValueError for unsupported
    settings.
    """

    bits: int = 4  # 4 or 8
    group: int = 128  # a power of two from 32 to 2048
    scales: ScaleType = "float32"  # bfloat16 ones are rounded up
    hadamard: bool = False  # what is quantized is the transform of every 32 coordinates
    rounding: LinearRounding = "nearest"

    def __post_init__(self) -> None:
        MessageFormat(self.bits, self.group, self.scales)
        if self.rounding not in get_args(LinearRounding):
            raise ValueError(f"rounding={self.rounding}: choose one of {', '.join(get_args(LinearRounding))}")

    @property
    def format(self) -> MessageFormat:
        return MessageFormat(self.bits, self.group, self.scales)

    def message_bytes(self, numel: int) -> int:
        """Bytes of the message of `numel` coordinates: (bits + 32/group)/8 each, apart from padding."""
        return self.format.num_bytes(numel)

    def quantize(self, x: Tensor, out: Tensor, noise: RoundingNoise | None = None, first: int = 0) -> None:
        """Write the message of `x` to `out`.

        Stochastic rounding needs the `noise` of this rank and step, and the index of the buffer's `first`
        coordinate in it, a multiple of 32. Raises ValueError if the noise is missing, or given but not used.
        """
        stochastic = self.rounding == "stochastic"
        if stochastic != (noise is not None):
            raise ValueError(f"rounding={self.rounding} {'needs' if stochastic else 'takes no'} noise")
        if first % BLOCK or not 0 <= first <= LARGEST - x.numel() - self.group:
            raise ValueError(f"first={first}: choose a multiple of {BLOCK} well below {LARGEST}")
        bits = None if noise is None else noise.bits
        linear_quantize(x, out, self.format, self.hadamard, bits, first)

    def dequantize(self, message: Tensor, out: Tensor, hadamard: bool | None = None) -> None:
        """Write the values of `message` to `out`. They are transformed back if they were transformed;
        `hadamard` overrides this."""
        linear_dequantize(message, out, self.format, self._smoothed(hadamard))

    def reduce(self, messages: Tensor, out: Tensor, hadamard: bool | None = None) -> None:
        """Write the sum of the values of `messages`, (m, message_bytes) with contiguous rows, to `out`: in
        float32, in the order of the rows.

        The sum is transformed back once at the end if the values were transformed; `hadamard` overrides this
        (SDP4Bit, Algorithm 3, does not transform between the levels).
        """
        linear_reduce(messages, out, self.format, self._smoothed(hadamard))

    def add(self, message: Tensor, target: Tensor, hadamard: bool | None = None) -> None:
        """Add the values of `message`, as `dequantize` decodes them, to `target`: in float32, rounded
        once."""
        linear_add(message, target, self.format, self._smoothed(hadamard))

    def _smoothed(self, hadamard: bool | None) -> bool:
        return self.hadamard if hadamard is None else hadamard


MESSAGES = 4
"""Number of messages that `linear.reduce` of the benchmark sums."""

_GROUPS = (128, 2048)


def quantizing(quantizer: LinearQuantizer) -> Cost:
    """The cost of quantization per coordinate. Random bits cost more than the number of bits or the
    transform, so costs are those of the benchmark at 4 bits without the transform."""
    if quantizer.rounding == "stochastic":
        return once("linear.quantize_stochastic.4")
    return once(_named("quantize", quantizer))


def dequantizing(quantizer: LinearQuantizer) -> Cost:
    """The cost of decoding a message, per coordinate."""
    return once(_named("dequantize", quantizer))


def adding(quantizer: LinearQuantizer) -> Cost:
    """The cost of adding a message, per coordinate, without the transform, which the benchmark does not
    include."""
    return once(f"linear.add.{quantizer.bits}")


def reducing(bits: int, transformed: bool) -> Cost:
    """The cost per coordinate and message of summing several messages."""
    return once(f"linear.reduce{'_hadamard' if transformed else ''}.{bits}") * (1 / MESSAGES)


def _named(operation: str, quantizer: LinearQuantizer) -> str:
    if quantizer.hadamard:
        return f"linear.{operation}_hadamard.{quantizer.bits}"
    group = nearest(_GROUPS, quantizer.group)
    return f"linear.{operation}.{quantizer.bits}{'' if group == _GROUPS[0] else f'.{group}'}"
