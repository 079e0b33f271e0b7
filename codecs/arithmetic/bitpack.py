"""Integers of any width from 1 to 32 bits as a little-endian bit stream: value i begins at bit i·bits.

Eight values take `bits` whole bytes, so rows of a multiple of eight values are streams of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from gradwire.codecs.native.call import run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library

_EIGHT = 8


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes of `numel` values, the last ones padded to eight."""
    return -(-numel // _EIGHT) * bits


def pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Write contiguous int32 `codes` of any shape to `out`, (numel·bits/8,) uint8.

    The number of codes is a multiple of 8. They lie in [0, 2^bits); at 32 bits every bit pattern is allowed.
    At 16 and 32 bits `out` must be aligned to 16 and 32 bits.
    """
    library = library_for(codes.device)
    if library is not None:
        numel = codes.numel()
        given = {"codes_in": (codes, numel), "packed_out": (out, numel * bits // _EIGHT)}
        run(library, "pack_bits", codes.device, numel=numel, bits=bits, **given)
    else:
        out.copy_(packed(codes, bits))


def unpack(stream: Tensor, bits: int) -> Tensor:
    """The values of `stream`, (m·bits,) uint8 as `pack` writes it: (8·m,) int32."""
    codes = torch.empty(stream.numel() // bits * _EIGHT, dtype=torch.int32, device=stream.device)
    write_values(stream, bits, codes)
    return codes


def write_values(stream: Tensor, bits: int, codes: Tensor) -> None:
    """Write the values of `stream`, (m·bits,) uint8, to `codes`, (8·m,) int32."""
    library = library_for(stream.device)
    if library is not None:
        _unpack_native(library, "unpack_bits", stream, bits, codes)
    else:
        codes.copy_(unpacked(stream, bits))


def unpack_add(stream: Tensor, bits: int, sums: Tensor) -> None:
    """Add the values of `stream`, (m·bits,) uint8, to `sums`, (8·m,) int32; sums wrap around at 32 bits."""
    library = library_for(stream.device)
    if library is not None:
        _unpack_native(library, "add_bits", stream, bits, sums)
    else:
        sums.add_(unpacked(stream, bits))


def add_and_pack(stream: Tensor, bits: int, codes: Tensor, out: Tensor, sums: Tensor | None = None) -> None:
    """Write the sums of the values of `stream`, (m·bits,) uint8, and of `codes`, (8·m,) int32, as a stream to
    `out`, (m·bits,) uint8, and if given to `sums`, (8·m,) int32, which may be `codes`.

    The sums lie in [0, 2^bits); at 32 bits they wrap around. `out` is aligned as for `pack`.
    """
    library = library_for(stream.device)
    if library is None:
        total = codes + unpacked(stream, bits)
        out.copy_(packed(total, bits))
        if sums is not None:
            sums.copy_(total)
        return
    numel = codes.numel()
    num_bytes = numel * bits // _EIGHT
    given = {"packed_in": (stream, num_bytes), "codes_in": (codes, numel), "packed_out": (out, num_bytes)}
    run(
        library,
        "add_and_pack_bits",
        stream.device,
        **given,
        codes_out=(sums, numel),
        numel=numel,
        bits=bits,
    )


def _unpack_native(library: Library, operation: str, stream: Tensor, bits: int, codes: Tensor) -> None:
    numel = codes.numel()
    given = {"packed_in": (stream, numel * bits // _EIGHT), "codes_out": (codes, numel)}
    run(library, operation, stream.device, numel=numel, bits=bits, **given)


def packed(codes: Tensor, bits: int) -> Tensor:
    """The stream of int32 `codes`, (numel·bits/8,) uint8: the definition of `pack`.

    Every byte is the union of the values that reach into it, each shifted to its place.
    """
    values = codes.reshape(-1, _EIGHT)
    columns = []
    for start in range(0, _EIGHT * bits, 8):
        reaching = range(start // bits, (start + 7) // bits + 1)
        columns.append(_union(_shifted(values[:, i], i * bits - start) for i in reaching))
    return torch.stack(columns, dim=1).to(torch.uint8).view(-1)


def unpacked(stream: Tensor, bits: int) -> Tensor:
    """The values of `stream`, (m·bits,) uint8: (8·m,) int32, the definition of `unpack`."""
    octets = stream.view(-1, bits).to(torch.int32)
    columns = []
    for start in range(0, _EIGHT * bits, bits):
        reaching = range(start // 8, (start + bits - 1) // 8 + 1)
        columns.append(_union(_shifted(octets[:, byte], 8 * byte - start) for byte in reaching))
    return (torch.stack(columns, dim=1) & _ones(bits)).view(-1)


def _ones(bits: int) -> int:
    """The int32 whose lowest `bits` are set."""
    return -1 if bits == 32 else (1 << bits) - 1


def _shifted(words: Tensor, left: int) -> Tensor:
    """`words` shifted by `left` bits, to the right if negative; what leaves 32 bits is lost."""
    return words << left if left >= 0 else words >> -left


def _union(words: Iterable[Tensor]) -> Tensor:
    return reduce(torch.bitwise_or, words)
