"""Coders of truncated floating-point numbers, with or without block scales, and the planes that refine their
payloads (AQGB §4.3, §4.4).

Truncation to fewer bits keeps the first bits of truncation to more, within one base: single precision from 10
to 32 bits, half precision from 7 to 9, and in the embedded base all from 2 to 32. A payload and its plane
together are then the payload of more bits, byte for byte. Rounding is towards zero: with stochastic rounding,
a value rounded up at one number of bits would not be a prefix of the value at another.

E2M1 and E4M3 have no planes: their payloads keep no sign of what is truncated to zero (−0 stands for NaN),
and block scales depend on the number of bits. Below 7 bits refinement needs the embedded base.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, packed_bytes, unpacked
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.native.call import readable
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library
from gradwire.codecs.slices import GroupCoder
from gradwire.codecs.tfp.definition import (
    BLOCK,
    WIDEST_SCALED,
    TruncatedFormat,
    block_scales,
    embed,
    restore,
    restore_embedded,
    scaled_down,
    truncate,
    truncated_format,
)

Base = Literal["plain", "scaled", "embedded"]
"""The numbers that are cut: coordinates in the format of as many bits, their multiples of a block's
scale in that format, or these in the one base that has all numbers of bits (`embedded`)."""


class FirstBitsCoder(GroupCoder):
    """Codes of the first bits of a `base`, rounded stochastically with `random`, otherwise towards zero."""

    family = "tfp"
    scale_dtype = torch.bfloat16
    random: CoordinateBits | None

    @property
    @abstractmethod
    def base(self) -> Base: ...

    def settings(self, library: Library, first: int) -> dict[str, Any]:
        return {
            "first": first,
            "bits": self.bits,
            "bits_in": self.bits,
            "base": library.constant(f"TFP_{self.base.upper()}"),
            "stochastic": self.random is not None,
            **(self.random or CoordinateBits((0, 0), 0)).fields(),
        }


@dataclass(frozen=True)
class TruncationCoder(FirstBitsCoder):
    """Codes in the format `target` of the coordinates or, if `scaled`, of the coordinates divided by a
    block's scale; rounded stochastically with `random`, otherwise towards zero."""

    target: TruncatedFormat
    scaled: bool
    random: CoordinateBits | None

    @property
    def scales_per_group(self) -> int:
        return 1 if self.scaled else 0

    @property
    def base(self) -> Base:
        return "scaled" if self.scaled else "plain"

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        scales = torch.empty(len(rows), 0, dtype=self.scale_dtype, device=rows.device)
        if self.scaled:
            scales = block_scales(rows, self.target.maximum, round_up=self.random is not None)
            rows = scaled_down(rows, scales)
        words = None if self.random is None else self.random.words(first, rows)
        return scales, truncate(rows, self.target, words)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        values = restore(codes, self.target)
        return values * scales.to(torch.float32) if self.scaled else values


@dataclass(frozen=True)
class EmbeddedCoder(FirstBitsCoder):
    """Codes of coordinates divided by a block's scale, rounded towards zero, such that the code of fewer bits
    is a prefix."""

    random = None

    @property
    def base(self) -> Base:
        return "embedded"

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        scales = block_scales(rows, 1.0, round_up=True)
        return scales, embed(scaled_down(rows, scales), self.bits)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        return restore_embedded(codes, self.bits) * scales.to(torch.float32)


def coder_of(bits: int, base: str, random: CoordinateBits | None = None) -> FirstBitsCoder:
    """The coder of `bits` in one of the `Base`s; rounds stochastically with `random`.

    Raises ValueError for unsupported combinations.
    """
    if not 2 <= bits <= 32:
        raise ValueError(f"tfp: bits={bits}; choose 2 to 32")
    if base == "embedded":
        if random is not None:
            raise ValueError(
                "tfp: base=embedded is rounded towards zero, or its first bits would not be a prefix"
            )
        return EmbeddedCoder(BLOCK, bits)
    if base not in ("plain", "scaled"):
        raise ValueError(f"tfp: base={base}; choose plain, scaled or embedded")
    if base == "scaled" and bits > WIDEST_SCALED:
        raise ValueError(f"tfp: base=scaled has up to {WIDEST_SCALED} bits, got {bits}; choose base=plain")
    return TruncationCoder(BLOCK, bits, truncated_format(bits), base == "scaled", random)


def cannot_refine(bits: int, more: int, base: str) -> str | None:
    """None, or the reason why a payload of `bits` cannot be refined to one of `more`."""
    if not 2 <= bits < more <= 32:
        return f"{bits} bits to {more}: choose more bits than before, 2 to 32"
    if base == "embedded":
        return None
    if base != "plain":
        return f"base={base}: choose embedded, or plain from 7 bits on"
    first, last = truncated_format(bits), truncated_format(more)
    if bits < 7:
        return f"{bits} bits: values truncated to zero lose their sign; choose base=embedded"
    if first.bias != last.bias:
        return f"{bits} bits to {more}: the formats have different exponents; choose base=embedded"
    return None


def plane_bytes(numel: int, bits: int, more: int) -> int:
    """Bytes of the plane that refines `bits` to `more` bits of `numel` coordinates."""
    return packed_bytes(numel, more - bits)


def _coders(bits: int, more: int, base: str) -> tuple[FirstBitsCoder, FirstBitsCoder]:
    reason = cannot_refine(bits, more, base)
    if reason is not None:
        raise ValueError(f"tfp: cannot refine {reason}")
    return coder_of(bits, base), coder_of(more, base)


def tfp_plane(values: Tensor, bits: int, more: int, base: str, out: Tensor) -> None:
    """Write the plane of (numel,) floating-point `values`, the bits that payloads of `more` bits have beyond
    those of `bits`, to `out`, (plane_bytes,) uint8.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    _, coder = _coders(bits, more, base)
    library = library_for(values.device)
    if library is not None:
        values, size = readable(values), plane_bytes(values.numel(), bits, more)
        given: dict[str, Any] = {"values_in": (values, values.numel()), "message_out": (out, size)}
        coder.run(library, "plane", values, bits_in=bits, **given)
        return
    width, numel = more - bits, values.numel()
    message = torch.empty(coder.num_bytes(numel), dtype=torch.uint8, device=values.device)
    coder.encode(values, 0, message)
    codes, _ = coder.split(message, numel)
    out.copy_(packed(unpacked(codes, more) & ((1 << width) - 1), width))


def tfp_refine(
    message: Tensor, plane: Tensor, numel: int, bits: int, more: int, base: str, out: Tensor
) -> None:
    """Join a payload of `bits` and its plane to the payload of `more` bits, which fills `out`.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    less, coder = _coders(bits, more, base)
    library = library_for(out.device)
    if library is not None:
        given: dict[str, Any] = {
            "message_in": (message, less.num_bytes(numel)),
            "plane_in": (plane, plane_bytes(numel, bits, more)),
            "message_out": (out, coder.num_bytes(numel)),
        }
        coder.run(library, "refine", out, numel=numel, bits_in=bits, **given)
        return
    (codes, scales), (all_codes, same_scales) = less.split(message, numel), coder.split(out, numel)
    width = more - bits
    all_codes.copy_(packed((unpacked(codes, bits) << width) | unpacked(plane, width), more))
    same_scales.copy_(scales)


def tfp_refine_decode(
    message: Tensor, plane: Tensor, bits: int, more: int, base: str, values: Tensor
) -> None:
    """Decode a payload of `bits` and its plane to (numel,) float32 `values`.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    _refined(message, plane, bits, more, base, values, add=False)


def tfp_refine_add(message: Tensor, plane: Tensor, bits: int, more: int, base: str, sums: Tensor) -> None:
    """Add the decoded payload of `bits` and its plane to (numel,) float32 `sums`.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    _refined(message, plane, bits, more, base, sums, add=True)


def _refined(
    message: Tensor, plane: Tensor, bits: int, more: int, base: str, values: Tensor, add: bool
) -> None:
    less, coder = _coders(bits, more, base)
    library, numel = library_for(values.device), values.numel()
    if library is not None:
        given: dict[str, Any] = {
            "message_in": (message, less.num_bytes(numel)),
            "plane_in": (plane, plane_bytes(numel, bits, more)),
            "values_out": (values, numel),
        }
        coder.run(library, "add" if add else "decode", values, bits_in=bits, **given)
        return
    joined = torch.empty(coder.num_bytes(values.numel()), dtype=torch.uint8, device=values.device)
    tfp_refine(message, plane, values.numel(), bits, more, base, joined)
    if add:
        coder.accumulate(joined, 0, values)
    else:
        coder.decode_into(joined, 0, values)
