"""Refinement: a payload of some bits, and later a plane of the bits that follow them (AQGB §4.3, §4.4).

Truncation to fewer bits keeps the first bits of truncation to more, within one base: single precision from
10 to 32 bits, half precision from 7 to 9, and in the embedded base all from 2 to 32. A payload and its plane
together are then the payload of more bits, byte for byte. Rounding is towards zero: what is rounded up
stochastically at one number of bits is no prefix of what it would be at another.

E2M1 and E4M3 have no planes: their payloads keep no sign of what is truncated to zero (−0 stands for NaN),
and block scales depend on the number of bits. Below 7 bits the embedded base is there for refinement.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, packed_bytes, unpacked
from gradwire.codecs.groups import GroupCoder
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.tfp.coder import coder_of
from gradwire.codecs.tfp.formats import truncated_format
from gradwire.codecs.tfp.native import TruncationKernels


def cannot_refine(bits: int, more: int, base: str) -> str | None:
    """None, or why a payload of `bits` cannot be refined to one of `more`."""
    if not 2 <= bits < more <= 32:
        return f"{bits} bits to {more}: choose more bits than there are, 2 to 32"
    if base == "embedded":
        return None
    if base != "plain":
        return f"base={base}: choose embedded, or plain from 7 bits on"
    first, last = truncated_format(bits), truncated_format(more)
    if bits < 7:
        return f"{bits} bits: what they truncate to zero has lost its sign; choose base=embedded"
    if first.bias != last.bias:
        return f"{bits} bits to {more}: the formats have different exponents; choose base=embedded"
    return None


def plane_bytes(numel: int, bits: int, more: int) -> int:
    """Bytes of the plane that refines `bits` to `more` bits of `numel` coordinates."""
    return packed_bytes(numel, more - bits)


def _coders(bits: int, more: int, base: str) -> tuple[GroupCoder, GroupCoder]:
    reason = cannot_refine(bits, more, base)
    if reason is not None:
        raise ValueError(f"tfp: cannot refine {reason}")
    return coder_of(bits, base), coder_of(more, base)


def _kernels(coder: GroupCoder) -> TruncationKernels:
    return cast(TruncationKernels, coder.kernels)


def tfp_plane(values: Tensor, bits: int, more: int, base: str, out: Tensor) -> None:
    """Write the bits of (numel,) floating-point `values` that payloads of `more` bits have beyond those of
    `bits` to `out`, (plane_bytes,) uint8.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    _, coder = _coders(bits, more, base)
    library = library_for(values.device)
    if library is not None:
        _kernels(coder).plane(library, values, bits, out)
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
        _kernels(coder).refine(library, message, plane, numel, bits, out)
        return
    (codes, scales), (all_codes, same_scales) = less.split(message, numel), coder.split(out, numel)
    width = more - bits
    all_codes.copy_(packed((unpacked(codes, bits) << width) | unpacked(plane, width), more))
    same_scales.copy_(scales)


def tfp_refine_decode(
    message: Tensor, plane: Tensor, bits: int, more: int, base: str, values: Tensor
) -> None:
    """Fill (numel,) float32 `values` with what a payload of `bits` and its plane stand for.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    _refined(message, plane, bits, more, base, values, add=False)


def tfp_refine_add(message: Tensor, plane: Tensor, bits: int, more: int, base: str, sums: Tensor) -> None:
    """Add to (numel,) float32 `sums` what a payload of `bits` and its plane stand for.

    Raises ValueError for numbers of bits that `cannot_refine`.
    """
    _refined(message, plane, bits, more, base, sums, add=True)


def _refined(
    message: Tensor, plane: Tensor, bits: int, more: int, base: str, values: Tensor, add: bool
) -> None:
    _, coder = _coders(bits, more, base)
    library = library_for(values.device)
    if library is not None:
        _kernels(coder).decode_refined(library, message, plane, values, bits, add)
        return
    joined = torch.empty(coder.num_bytes(values.numel()), dtype=torch.uint8, device=values.device)
    tfp_refine(message, plane, values.numel(), bits, more, base, joined)
    if add:
        coder.accumulate(joined, 0, values)
    else:
        coder.decode_into(joined, 0, values)
