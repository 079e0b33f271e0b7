"""Blocks: runs of consecutive coordinates that are sent together or not at all (the paper's chunks). Their
energies, of which this is the definition that compiled kernels reproduce; which are chosen; and how choices
travel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, unpacked
from gradwire.codecs.arithmetic.floats import exponents, fold, normalizers, restorers
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for

SPAN = 256
"""Coordinates summed in float32, scaled by one power of two; the spans of a block are added in float64."""

PARTIAL_SUMS = 32
"""Spans of a block this far apart go to the same partial sum."""


def num_blocks(numel: int, block: int) -> int:
    """Blocks of `block` coordinates in a bucket, the last one possibly partial."""
    return -(-numel // block)


def block_energies(x: Tensor, block: int) -> Tensor:
    """The squared l2 norm of every block of `x`, (numel,) of a floating dtype: (blocks,) float64.

    Infinite where a coordinate is not finite, and only there; of finite ones right to 10⁻⁶, however large or
    small they are. Blocks of the same values have the same energy, and so do machines and implementations.
    """
    energies = torch.empty(num_blocks(x.numel(), block), dtype=torch.float64, device=x.device)
    write_energies(readable(x), block, energies)
    return energies


def write_energies(x: Tensor, block: int, energies: Tensor) -> None:
    """Fill `energies`, float64 (blocks,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        blocks = (energies, num_blocks(x.numel(), block))
        run(
            library,
            "block_energies",
            x.device,
            x=(x, x.numel()),
            numel=x.numel(),
            block=block,
            energies=blocks,
        )
        return
    spans = _spans(x.to(torch.float32), block)
    sums = _padded(_span_energies(spans), PARTIAL_SUMS).view(len(spans), -1, PARTIAL_SUMS)
    total = sums[:, 0]
    for each in range(1, sums.shape[1]):
        total = total + sums[:, each]
    energies.copy_(fold(total).nan_to_num(nan=torch.inf, posinf=torch.inf))


def _spans(x: Tensor, block: int) -> Tensor:
    """(blocks, spans, width) of zero-padded spans: as wide as the power of two that holds a block, at most
    `SPAN`. How many zeros there are changes no sum."""
    width = min(1 << (block - 1).bit_length(), SPAN)
    rows = _padded(torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block), width)
    return rows.view(rows.shape[0], -1, width)


def _padded(rows: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % multiple))


def _span_energies(spans: Tensor) -> Tensor:
    """(blocks, spans) float64. With m a power of two near the span's largest magnitude: m²·Σ(x/m)², the sum
    in float32, the product exact."""
    rows = spans.flatten(0, 1)
    field = exponents(rows.abs().amax(dim=1))
    squares = fold((rows * normalizers(field)[:, None]).square())
    scale = restorers(field).double()
    return (squares.double() * scale * scale).view(spans.shape[:2])


def largest_blocks(energies: Tensor, count: int) -> Tensor:
    """Which blocks are among the `count` of most energy, the earlier of two alike: (blocks,) bool.

    Blocks that are not finite always are, even if they are more.
    """
    chosen = energies.isinf()
    order = energies.sort(descending=True, stable=True).indices
    chosen[order[:count]] = True
    return chosen


def pack_mask(mask: Tensor) -> Tensor:
    """(blocks,) bool to (ceil(blocks / 8),) uint8, a bit per block; bits beyond the last block are 0."""
    return packed(torch.nn.functional.pad(mask.to(torch.int32), (0, -mask.numel() % 8)), 1)


def unpack_mask(stream: Tensor, blocks: int) -> Tensor:
    """The inverse of `pack_mask`."""
    return unpacked(stream, 1)[:blocks].bool()


class SomeBlocks:
    """The `Selection` of some blocks of a bucket of `numel` coordinates."""

    def __init__(self, chosen: Tensor, numel: int, block: int, device: torch.device) -> None:
        """`chosen` is (blocks,) bool on the host, where it decides how long messages are."""
        self._block, self._whole = block, numel // block
        self._rows = chosen[: self._whole].nonzero()[:, 0].to(device)
        has_partial = bool(chosen[self._whole :].any())
        self._partial = slice(self._whole * block, numel if has_partial else self._whole * block)
        self._before = [0, *(block * chosen[: self._whole].cumsum(0)).tolist()]

    def _whole_blocks(self, x: Tensor) -> Tensor:
        return x[: self._whole * self._block].view(self._whole, self._block)

    def take(self, x: Tensor) -> Tensor:
        rows = self._whole_blocks(x).index_select(0, self._rows)
        return torch.cat((rows.flatten(), x[self._partial]))

    def put(self, values: Tensor, into: Tensor) -> None:
        rows = self._rows.numel()
        whole, partial = values[: rows * self._block], values[rows * self._block :]
        self._whole_blocks(into).index_copy_(0, self._rows, whole.view(rows, self._block))
        into[self._partial] = partial

    def before(self, bounds: Sequence[int]) -> list[int]:
        """`bounds` are multiples of the block, but for those that end the bucket."""
        sent = self._before[-1] + self._partial.stop - self._partial.start
        whole = self._whole * self._block
        return [self._before[bound // self._block] if bound <= whole else sent for bound in bounds]
