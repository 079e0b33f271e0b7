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
from functools import cached_property
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


@dataclass(frozen=True)
class Refinement:
    """The step from payloads of `bits` to payloads of `more` bits in one of the `Base`s, by a plane of the
    bits that coordinates have in between. Raises ValueError for numbers of bits that `cannot_refine`."""

    bits: int
    more: int
    base: str

    def __post_init__(self) -> None:
        reason = cannot_refine(self.bits, self.more, self.base)
        if reason is not None:
            raise ValueError(f"tfp: cannot refine {reason}")

    @cached_property
    def less_coder(self) -> FirstBitsCoder:
        """The coder of payloads that have no plane yet."""
        return coder_of(self.bits, self.base)

    @cached_property
    def coder(self) -> FirstBitsCoder:
        """The coder of payloads with their planes."""
        return coder_of(self.more, self.base)

    def plane(self, values: Tensor, out: Tensor) -> None:
        """Write the plane of `values`, (numel,) of a floating dtype, to `out`, (plane_bytes,) uint8."""
        library = library_for(values.device)
        if library is not None:
            values, size = readable(values), plane_bytes(values.numel(), self.bits, self.more)
            given: dict[str, Any] = {"values_in": (values, values.numel()), "message_out": (out, size)}
            self.coder.run(library, "plane", values, bits_in=self.bits, **given)
            return
        width, numel = self.more - self.bits, values.numel()
        message = torch.empty(self.coder.num_bytes(numel), dtype=torch.uint8, device=values.device)
        self.coder.encode(values, 0, message)
        codes, _ = self.coder.split(message, numel)
        out.copy_(packed(unpacked(codes, self.more) & ((1 << width) - 1), width))

    def join(self, message: Tensor, plane: Tensor, numel: int, out: Tensor) -> None:
        """Join a payload of `bits` and its plane to the payload of `more` bits, which fills `out`."""
        library = library_for(out.device)
        if library is not None:
            given = self._given(message, plane, numel)
            given["message_out"] = out, self.coder.num_bytes(numel)
            self.coder.run(library, "refine", out, numel=numel, bits_in=self.bits, **given)
            return
        codes, scales = self.less_coder.split(message, numel)
        all_codes, same_scales = self.coder.split(out, numel)
        width = self.more - self.bits
        joined = (unpacked(codes, self.bits) << width) | unpacked(plane, width)
        all_codes.copy_(packed(joined, self.more))
        same_scales.copy_(scales)

    def decode(self, message: Tensor, plane: Tensor, values: Tensor) -> None:
        """Fill `values`, (numel,) float32, with what a payload of `bits` and its plane stand for."""
        if not self._run_decoding("decode", message, plane, values):
            self.coder.decode_into(self._joined(message, plane, values), 0, values)

    def add(self, message: Tensor, plane: Tensor, sums: Tensor) -> None:
        """Add to `sums`, (numel,) float32, what a payload of `bits` and its plane stand for."""
        if not self._run_decoding("add", message, plane, sums):
            self.coder.accumulate(self._joined(message, plane, sums), 0, sums)

    def _given(self, message: Tensor, plane: Tensor, numel: int) -> dict[str, Any]:
        """The fields of kernels for a payload and its plane."""
        return {
            "message_in": (message, self.less_coder.num_bytes(numel)),
            "plane_in": (plane, plane_bytes(numel, self.bits, self.more)),
        }

    def _run_decoding(self, operation: str, message: Tensor, plane: Tensor, values: Tensor) -> bool:
        """Runs a compiled kernel that writes `values`; False if there is none."""
        library, numel = library_for(values.device), values.numel()
        if library is None:
            return False
        given = self._given(message, plane, numel)
        self.coder.run(library, operation, values, bits_in=self.bits, values_out=(values, numel), **given)
        return True

    def _joined(self, message: Tensor, plane: Tensor, values: Tensor) -> Tensor:
        """The payload of `more` bits, made of both in PyTorch."""
        numel = values.numel()
        out = torch.empty(self.coder.num_bytes(numel), dtype=torch.uint8, device=values.device)
        self.join(message, plane, numel, out)
        return out
