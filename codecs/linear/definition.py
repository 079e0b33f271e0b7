"""The operations of linear quantizers: their definition in plain PyTorch, and which implementation runs.

Of a group with the largest magnitude m (after the smoother, if there is one), s = max(m, 2⁻¹⁰⁰) is stored:
as float32, or rounded up to bfloat16. With peak = 2^(bits−1) − 1 and the factor f = peak/s, taken from what
is stored, a coordinate's code is x·f rounded to nearest, ties to even. Stochastically it is ⌊(4·z + h)/2¹⁶⌋,
where z is x·(2¹⁴·f) rounded to nearest and h is 16 random bits: z/2¹⁴ on average, exactly. As |x| ≤ s up to a
few roundings, no code is beyond ±peak. One division for each group, none for a coordinate.

Codes q are decoded to q·t with the step t = s·(1/peak), one multiplication for each group.

The smoother's factor r = 1/√32 is applied to groups as well: m = r·(the largest sum), f = r·(peak/s), and in
decoding t = s·(r/peak). Of one message the transform acts on the codes, whose sums are exact integers, before
they are multiplied by t; of several, on the sums of their q·t.

What follows for special values:
- groups of zeros have the scale 2⁻¹⁰⁰ and decode to zeros; groups with a smaller maximum fade into it;
- where maxima lie between 2⁻¹⁰⁰ and the largest float32, multiplying a buffer by 2^k changes no code;
- a group with a coordinate that is not finite has the scale NaN and the codes 0: it decodes to NaN. So does
  one whose maximum no bfloat16 is above, and one whose sums in the smoother overflow (values above 1e37).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.bitpack import pack, unpack
from gradwire.codecs.coordinate_bits import CoordinateBits
from gradwire.codecs.floats import constant
from gradwire.codecs.linear import native
from gradwire.codecs.linear.message import MessageFormat
from gradwire.codecs.linear.smoother import NORM, butterflies
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

SMALLEST_SCALE = 2.0**-100

FRACTION_BITS = 14
"""Of a coordinate in steps, when it is rounded stochastically: 127 of them still have 22 bits."""

_INFINITE, _NAN = 0x7F80_0000, 0x7FC0_0000  # bits of float32

TILE = 1 << 16
"""Coordinates processed at a time: temporaries stay near a core, the cost of a call is spread."""


@dataclass(frozen=True)
class _Tile:
    """Some groups of a buffer: their coordinates' range, their scales, their part of the codes."""

    start: int
    stop: int
    scales: Tensor
    codes: Tensor


def _tiles(message: Tensor, numel: int, form: MessageFormat) -> Iterator[_Tile]:
    if numel == 0:
        return
    scales, codes = form.split(message, numel)
    for start in range(0, numel, TILE):
        stop = min(start + TILE, numel)
        yield _Tile(
            start,
            stop,
            scales[start // form.group : form.num_groups(stop)],
            codes[form.code_bytes(start) : form.code_bytes(stop)],
        )


@operator(
    "linear_quantize(Tensor x, Tensor(a!) message, int bits, int group, str scales, bool hadamard, "
    "bool stochastic, int first, int key0, int key1, int rank) -> ()"
)
def linear_quantize(
    x: Tensor,
    message: Tensor,
    bits: int,
    group: int,
    scales: str,
    hadamard: bool,
    stochastic: bool,
    first: int = 0,
    key0: int = 0,
    key1: int = 0,
    rank: int = 0,
) -> None:
    """Write the message of `x`, (numel,) float32 or bfloat16, to `message`, (num_bytes,) uint8.

    `stochastic` rounding takes the bits of `CoordinateBits((key0, key1), rank)` for the coordinates from
    `first` on, a multiple of 32.
    """
    form = MessageFormat(bits, group, scales)
    library = library_for(x.device)
    if library is not None:
        random = (first, key0, key1, rank) if stochastic else None
        native.linear_quantize(library, x, message, form, hadamard, random)
        return
    noise = CoordinateBits((key0, key1), rank) if stochastic else None
    numel = x.numel()
    form.split(message, numel)[0][form.num_groups(numel) :] = 0
    for tile in _tiles(message, numel, form):
        rows = _rows(x[tile.start : tile.stop], group)
        if hadamard:
            rows = butterflies(rows)
        scale = _scales(rows, form, hadamard)
        _store(scale.view(-1), tile.scales)
        dithers = None if noise is None else noise.dithers(first + tile.start, rows)
        codes = _codes(rows, scale, form.peak, hadamard, dithers)
        stored = tile.codes.numel() * 8 // bits
        pack(codes.view(-1)[:stored].bitwise_and_((1 << bits) - 1), bits, tile.codes)


def _rows(x: Tensor, group: int) -> Tensor:
    """(numel,) as (groups, group) float32, the last one padded with zeros."""
    padding = -x.numel() % group
    return torch.nn.functional.pad(x.to(torch.float32), (0, padding)).view(-1, group)


def _scales(rows: Tensor, form: MessageFormat, hadamard: bool) -> Tensor:
    """Of every group, (groups, 1) float32, as they are stored."""
    maximum = rows.abs().amax(dim=1, keepdim=True)
    if hadamard:
        maximum *= constant(NORM, rows)
    finite = maximum.isfinite()
    pattern = maximum.clamp_(min=SMALLEST_SCALE).masked_fill_(~finite, torch.inf).view(torch.int32)
    if form.scales == "bfloat16":
        pattern = (pattern + 0xFFFF).bitwise_and_(~0xFFFF)
    return pattern.masked_fill_(pattern >= _INFINITE, _NAN).view(torch.float32)


def _store(scales: Tensor, target: Tensor) -> None:
    """As bits, NaN included: PyTorch's conversions differ in what they make of it."""
    pattern = scales.view(torch.int32)
    if target.dtype == torch.bfloat16:
        target.view(torch.int16).copy_(pattern >> 16)
    else:
        target.view(torch.int32).copy_(pattern)


def _codes(rows: Tensor, scale: Tensor, peak: int, hadamard: bool, dithers: Tensor | None) -> Tensor:
    """(groups, group) int32 in [−peak, peak]."""
    factor = constant(peak, rows).div(scale)
    if hadamard:
        factor *= constant(NORM, rows)
    if dithers is not None:
        factor *= float(1 << FRACTION_BITS)
    codes = (rows * factor).round_().masked_fill_(factor.isnan(), 0).to(torch.int32)
    if dithers is not None:
        codes = (codes << (16 - FRACTION_BITS)).add_(dithers).bitwise_right_shift_(16)
    return codes


@operator(
    "linear_dequantize(Tensor message, Tensor(a!) out, int bits, int group, str scales, bool hadamard) -> ()"
)
def linear_dequantize(
    message: Tensor, out: Tensor, bits: int, group: int, scales: str, hadamard: bool
) -> None:
    """Write the values of `message`, (num_bytes,) uint8, to `out`, (numel,) float32 or bfloat16, transformed
    if `hadamard`."""
    form = MessageFormat(bits, group, scales)
    library = library_for(out.device)
    if library is not None:
        native.linear_dequantize(library, message, out, form, hadamard)
        return
    for tile in _tiles(message, out.numel(), form):
        target = out[tile.start : tile.stop]
        target.copy_(_values(tile, form, hadamard)[: target.numel()])


@operator(
    "linear_add(Tensor message, Tensor(a!) target, int bits, int group, str scales, bool hadamard) -> ()"
)
def linear_add(message: Tensor, target: Tensor, bits: int, group: int, scales: str, hadamard: bool) -> None:
    """Add the values of `message` to `target`, (numel,) float32 or bfloat16: in float32, rounded once."""
    form = MessageFormat(bits, group, scales)
    library = library_for(target.device)
    if library is not None:
        native.linear_add(library, message, target, form, hadamard)
        return
    for tile in _tiles(message, target.numel(), form):
        part = target[tile.start : tile.stop]
        part.copy_(part.to(torch.float32) + _values(tile, form, hadamard)[: part.numel()])


@operator(
    "linear_reduce(Tensor messages, Tensor(a!) out, int bits, int group, str scales, bool hadamard) -> ()"
)
def linear_reduce(messages: Tensor, out: Tensor, bits: int, group: int, scales: str, hadamard: bool) -> None:
    """Write the sum of the values of `messages`, (m, num_bytes) uint8 with contiguous rows, to `out`,
    (numel,) float32 or bfloat16: in float32, in the order of the rows, transformed once in the end if
    `hadamard`. Of a single message it gives what `linear_dequantize` gives.

    Without the transform, what was transformed stays so; an `out` of whole blocks of 32 then takes all of it.
    """
    if messages.shape[0] == 0:
        raise ValueError("linear_reduce: there are no messages")
    if messages.shape[0] == 1:
        linear_dequantize(messages[0], out, bits, group, scales, hadamard)
        return
    form = MessageFormat(bits, group, scales)
    library = library_for(out.device)
    if library is not None:
        native.linear_reduce(library, messages, out, form, hadamard)
        return
    for tiles in zip(*(_tiles(message, out.numel(), form) for message in messages), strict=True):
        total = _products(tiles[0], form, hadamard)
        for tile in tiles[1:]:
            total += _products(tile, form, hadamard)
        if hadamard:
            total = butterflies(total)
        target = out[tiles[0].start : tiles[0].stop]
        target.copy_(total[: target.numel()])


def _values(tile: _Tile, form: MessageFormat, hadamard: bool) -> Tensor:
    """What a tile's codes stand for, whole blocks of float32."""
    codes = _signed(tile.codes, form.bits)
    return _scaled(butterflies(codes) if hadamard else codes, tile, form, hadamard)


def _products(tile: _Tile, form: MessageFormat, hadamard: bool) -> Tensor:
    """The same, but not transformed."""
    return _scaled(_signed(tile.codes, form.bits), tile, form, hadamard)


def _signed(codes: Tensor, bits: int) -> Tensor:
    """Codes as float32."""
    half = 1 << (bits - 1)
    return unpack(codes, bits).bitwise_xor_(half).sub_(half).to(torch.float32)


def _scaled(values: Tensor, tile: _Tile, form: MessageFormat, hadamard: bool) -> Tensor:
    """Values times their groups' steps; overwrites them."""
    inverse = constant((NORM if hadamard else 1.0) / form.peak, values)
    step = tile.scales.to(torch.float32) * inverse
    whole = values.numel() // form.group * form.group
    values[:whole].view(-1, form.group).mul_(step[: whole // form.group, None])
    values[whole:].mul_(step[-1])
    return values
