"""Linear quantizers: their messages, and their operations in plain PyTorch, which compiled kernels reproduce.

A quantized buffer on the wire: one message with two sections, each a multiple of 16 bytes.

- Scales, one for each group, float32 or bfloat16; zeros up to a multiple of 16 bytes.
- Codes, two's complement, in the order of the coordinates: a byte each at 8 bits, at 4 bits two to a byte,
  the first in its low half. Codes fill whole blocks of 32, so that every transformed block is complete; the
  last block is padded with coordinates of 0 (after a transform their codes are not 0).

A group whose largest magnitude is m (after the smoother, if there is one) has the scale s = max(m, 2⁻¹⁰⁰),
stored as float32, or rounded up to bfloat16. With peak = 2^(bits−1) − 1 and the factor f = peak/s of the
stored s, a coordinate's code is x·f rounded to nearest, ties to even. Stochastically it is ⌊(4·z + h)/2¹⁶⌋,
where z is x·(2¹⁴·f) rounded to nearest and h is 16 random bits: z/2¹⁴ on average, exactly. As |x| ≤ s up to a
few roundings, no code is beyond ±peak. One division for each group, none for a coordinate.

Codes q are decoded to q·t with the step t = s·(1/peak), one multiplication for each group.

The smoother's factor r = 1/√32 is applied to groups as well: m = r·(the largest sum), f = r·(peak/s), and in
decoding t = s·(r/peak). For a single message the transform acts on the codes, whose sums are exact integers,
before the multiplication by t; for several, on the sums of their q·t.

Special values:
- groups of zeros have the scale 2⁻¹⁰⁰ and decode to zeros; groups with a smaller maximum lose precision and
  fade to zero;
- where maxima lie between 2⁻¹⁰⁰ and the largest float32, multiplying a buffer by 2^k changes no code;
- a group with a coordinate that is not finite has the scale NaN and the codes 0: it decodes to NaN. So does
  one whose maximum no bfloat16 is above, and one whose sums in the smoother overflow (values above 1e37).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, unpacked
from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.hadamard import butterflies
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.native.call import run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library
from gradwire.codecs.options.quantized import BITS, GROUPS

BLOCK = 32
"""Coordinates that the smoother mixes; messages consist of whole ones."""

SCALES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class MessageFormat:
    """Bits of a code, coordinates of a group, type of a scale. Raises ValueError for unsupported values."""

    bits: int
    group: int
    scales: str

    def __post_init__(self) -> None:
        offers = {"bits": BITS, "group": GROUPS, "scales": tuple(SCALES)}
        for name, offered in offers.items():
            value = getattr(self, name)
            if value not in offered:
                raise ValueError(f"{name}={value}: choose one of {', '.join(map(str, offered))}")

    @property
    def peak(self) -> int:
        """The largest code; the smallest is its negative."""
        return int((1 << (self.bits - 1)) - 1)

    def num_groups(self, numel: int) -> int:
        """Groups of `numel` coordinates, the last one possibly partial."""
        return -(-numel // self.group)

    def scale_bytes(self, numel: int) -> int:
        """Bytes of the first section."""
        return -(-self.num_groups(numel) * SCALES[self.scales].itemsize // 16) * 16

    def code_bytes(self, numel: int) -> int:
        """Bytes of the second section."""
        return -(-numel // BLOCK) * BLOCK * self.bits // 8

    def num_bytes(self, numel: int) -> int:
        """Bytes of the message of `numel` coordinates."""
        return self.scale_bytes(numel) + self.code_bytes(numel)

    def split(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Scales, with their padding, and codes (uint8) as views of a message."""
        end = self.scale_bytes(numel)
        return message[:end].view(SCALES[self.scales]), message[end:]


SMALLEST_SCALE = 2.0**-100

FRACTION_BITS = 14
"""Fraction of a coordinate in steps, when it is rounded stochastically: 127 of them still have 22 bits."""

NORM = 1 / math.sqrt(BLOCK)
"""Factor that makes the smoother orthogonal, a part of a group's factor, so that the transform multiplies no
coordinate (SDP4Bit §3.2.2)."""

_INFINITE, _NAN = 0x7F80_0000, 0x7FC0_0000  # bits of float32


def linear_quantize(
    x: Tensor,
    message: Tensor,
    form: MessageFormat,
    hadamard: bool,
    noise: CoordinateBits | None = None,
    first: int = 0,
) -> None:
    """Write the message of `x`, (numel,) float32 or bfloat16, to `message`, (num_bytes,) uint8.

    Codes are rounded to nearest, or stochastically with the bits of `noise` for the coordinates from `first`
    on, a multiple of 32.
    """
    if message.is_meta:  # it has no values
        return
    library = library_for(x.device)
    if library is not None:
        key0, key1 = (0, 0) if noise is None else noise.key
        run(
            library,
            "linear_quantize",
            x.device,
            x=(x, x.numel()),
            message=(message, form.num_bytes(x.numel())),
            numel=x.numel(),
            first=0 if noise is None else first,
            stochastic=noise is not None,
            key0=key0,
            key1=key1,
            rank=0 if noise is None else noise.rank,
            **_fields(form, hadamard, library),
        )
        return
    scale_part, code_part = form.split(message, x.numel())
    rows = _rows(x, form.group)
    if hadamard:
        rows = butterflies(rows, BLOCK)
    scale = _scales(rows, form, hadamard)
    _store(scale.view(-1), scale_part)
    dithers = None if noise is None else noise.dithers(first, rows)
    codes = _codes(rows, scale, form.peak, hadamard, dithers) & ((1 << form.bits) - 1)
    code_part.copy_(packed(codes.view(-1)[: code_part.numel() * 8 // form.bits], form.bits))


def _fields(form: MessageFormat, hadamard: bool, library: Library) -> dict[str, Any]:
    """The fields of kernels for the format and the smoother."""
    return {
        "bits": form.bits,
        "group": form.group,
        "scale_dtype": library.constant(f"GRADWIRE_{form.scales.upper()}"),
        "hadamard": hadamard,
    }


def _rows(x: Tensor, group: int) -> Tensor:
    """(numel,) as (groups, group) float32, the last one padded with zeros."""
    padding = -x.numel() % group
    return torch.nn.functional.pad(x.to(torch.float32), (0, padding)).view(-1, group)


def _scales(rows: Tensor, form: MessageFormat, hadamard: bool) -> Tensor:
    """The scale of every group, (groups, 1) float32, as it is stored."""
    maximum = rows.abs().amax(dim=1, keepdim=True)
    if hadamard:
        maximum = maximum * constant(NORM, rows)
    finite = maximum.isfinite()
    pattern = maximum.clamp(min=SMALLEST_SCALE).masked_fill(~finite, torch.inf).view(torch.int32)
    if form.scales == "bfloat16":
        pattern = (pattern + 0xFFFF) & ~0xFFFF
    return pattern.masked_fill(pattern >= _INFINITE, _NAN).view(torch.float32)


def _store(scales: Tensor, target: Tensor) -> None:
    """Write scales, padded with zeros, as bit patterns, because PyTorch's conversions treat NaN differently
    on different devices."""
    pattern = scales.view(torch.int32)
    patterns = target.view(torch.int16 if target.dtype == torch.bfloat16 else torch.int32)
    patterns[: len(scales)] = pattern >> 16 if target.dtype == torch.bfloat16 else pattern
    patterns[len(scales) :] = 0


def _codes(rows: Tensor, scale: Tensor, peak: int, hadamard: bool, dithers: Tensor | None) -> Tensor:
    """The codes, (groups, group) int32 in [−peak, peak]."""
    factor = constant(peak, rows) / scale
    if hadamard:
        factor = factor * constant(NORM, rows)
    if dithers is not None:
        factor = factor * float(1 << FRACTION_BITS)
    codes = (rows * factor).round().masked_fill(factor.isnan(), 0).to(torch.int32)
    return codes if dithers is None else ((codes << (16 - FRACTION_BITS)) + dithers) >> 16


def linear_dequantize(message: Tensor, out: Tensor, form: MessageFormat, hadamard: bool) -> None:
    """Write the values of `message`, (num_bytes,) uint8, to `out`, (numel,) float32 or bfloat16, transformed
    if `hadamard`."""
    if out.is_meta:  # it has no values
        return
    library = library_for(out.device)
    if library is not None:
        _decode(library, "linear_dequantize", message[None], out, form, hadamard)
        return
    out.copy_(_values(message, out.numel(), form, hadamard))


def linear_add(message: Tensor, target: Tensor, form: MessageFormat, hadamard: bool) -> None:
    """Add the values of `message` to `target`, (numel,) float32 or bfloat16: in float32, rounded once."""
    if target.is_meta:  # it has no values
        return
    library = library_for(target.device)
    if library is not None:
        _decode(library, "linear_add", message[None], target, form, hadamard)
        return
    target.copy_(target.to(torch.float32) + _values(message, target.numel(), form, hadamard))


def linear_reduce(messages: Tensor, out: Tensor, form: MessageFormat, hadamard: bool) -> None:
    """Write the sum of the values of `messages`, (m, num_bytes) uint8 with contiguous rows, to `out`,
    (numel,) float32 or bfloat16: in float32, in the order of the rows, transformed once in the end if
    `hadamard`. For a single message the result equals that of `linear_dequantize`.

    Without `hadamard`, transformed values are written as they are; `out` may then hold whole blocks of 32 to
    receive all of them.
    """
    if out.is_meta:  # it has no values
        return
    if messages.shape[0] == 0:
        raise ValueError("linear_reduce: there are no messages")
    if messages.shape[0] == 1:
        linear_dequantize(messages[0], out, form, hadamard)
        return
    library = library_for(out.device)
    if library is not None:
        _decode(library, "linear_reduce", messages, out, form, hadamard)
        return
    first, *others = (_products(message, out.numel(), form, hadamard) for message in messages)
    for other in others:
        first = first + other
    out.copy_((butterflies(first, BLOCK) if hadamard else first)[: out.numel()])


def _decode(
    library: Library, operation: str, messages: Tensor, out: Tensor, form: MessageFormat, hadamard: bool
) -> None:
    """Run the kernel of an operation that reads `messages`, (m, num_bytes) uint8 with any row stride."""
    run(
        library,
        operation,
        out.device,
        messages=(messages[0], form.num_bytes(out.numel())),
        stride=messages.stride(0),
        out=(out, out.numel()),
        numel=out.numel(),
        count=len(messages),
        **_fields(form, hadamard, library),
    )


def _values(message: Tensor, numel: int, form: MessageFormat, hadamard: bool) -> Tensor:
    """The values of a message: (numel,) float32."""
    scales, codes = form.split(message, numel)
    values = _signed(codes, form.bits)
    return _scaled(butterflies(values, BLOCK) if hadamard else values, scales, form, hadamard)[:numel]


def _products(message: Tensor, numel: int, form: MessageFormat, hadamard: bool) -> Tensor:
    """The values of a message before the transform, whole blocks of float32."""
    scales, codes = form.split(message, numel)
    return _scaled(_signed(codes, form.bits), scales, form, hadamard)


def _signed(codes: Tensor, bits: int) -> Tensor:
    """Two's complement codes as float32."""
    half = 1 << (bits - 1)
    return ((unpacked(codes, bits) ^ half) - half).to(torch.float32)


def _scaled(values: Tensor, scales: Tensor, form: MessageFormat, hadamard: bool) -> Tensor:
    """Values times their groups' steps."""
    inverse = constant((NORM if hadamard else 1.0) / form.peak, values)
    steps = scales.to(torch.float32) * inverse
    return values * steps.repeat_interleave(form.group)[: values.numel()]
