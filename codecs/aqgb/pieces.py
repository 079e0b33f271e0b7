"""The pieces of a block: successive coordinates that are sent with as many bits.

A block is one piece, unless the codec requantizes what is left of it: `codec.leftovers=requantized`, as in
AQGB §4.2. There all that is undelivered when another block appears is quantized again with the new block. No
message is taken back for that. The plan says how far a block gets until the next one appears, so that its
first message ends there, and what follows is encoded with the bits that are decided then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.aqgb.encoding import FULL, Encoding
from gradwire.codecs.aqgb.payload import Payload, mean_of, plane_of


class BlockPiece(NamedTuple):
    """The number of coordinates of a piece, and the bits of each of them in the first stage."""

    numel: int
    bits: int


def pieces_of(first: Sequence[int], split: Sequence[int], block: int, numel: int) -> list[BlockPiece]:
    """The pieces of a block of `numel` coordinates, in their order.

    `first` has the bits that are decided as each block appears. `split` has, row by row, how many coordinates
    of each block are sent with each of these; empty if a block keeps its own. Neighbours with the same bits
    are one piece, so that nothing is split where the ratio stays.
    """
    if not split:
        return [BlockPiece(numel, first[block])]
    found: list[BlockPiece] = []
    row = split[block * len(first) : (block + 1) * len(first)]
    for own, bits in zip(row, first, strict=True):
        if found and found[-1].bits == bits:
            found[-1] = BlockPiece(found[-1].numel + own, bits)
        elif own:
            found.append(BlockPiece(own, bits))
    return found


def coarsest(pieces: Sequence[BlockPiece]) -> int:
    """The fewest bits of a piece."""
    return min(piece.bits for piece in pieces)


def more_of(bits: int, least: int, more: int, encoding: Encoding) -> int:
    """The bits that follow a piece of `bits` when `more` follow those of `least` bits: the same share of what
    either lacks of 32, rounded up; 0 if they are too few to refine it."""
    if bits == FULL or not more:
        return 0
    own = -(-more * (FULL - bits) // (FULL - least))
    return own if own >= encoding.least_more(bits) else 0


@dataclass
class OpenPiece:
    """A piece that is still to be refined: this rank's coordinates as they are cut, the payloads received
    from all ranks, and how many more bits are to follow."""

    cut: Tensor
    parts: list[Payload]
    more: int

    @classmethod
    def of(cls, x: Tensor, rank: int, parts: list[Payload], more: int) -> OpenPiece:
        """The piece with this rank's coordinates `x`, (numel,), of which `parts[rank]` has the first bits."""
        rounding = parts[rank].rounding
        cut = x.to(torch.float32, copy=True) if rounding is None else rounding.dithered(x)
        return cls(cut, parts, more)

    def following(self, sent: int, step: int) -> int:
        """The number of the block's next `step` bits that are this piece's, after `sent` of them."""
        return max(0, min(step, self.more - sent))


@dataclass
class Open:
    """A block of a step that is still to be refined.

    Holds its pieces, how many more bits are to follow those of the coarsest within `deadline` seconds of the
    block's backward pass, and how many each rank has `sent`. `followed` gives the bits that each rank sent in
    the run whose decisions are followed, if any.
    """

    pieces: list[OpenPiece]
    more: int
    deadline: float
    followed: list[int] | None
    sent: list[int]

    def least_step(self, rank: int, encoding: Encoding) -> int:
        """The fewest bits that refine every piece of which a rank has more to send."""
        sent = self.sent[rank]
        going = (piece.parts[rank].bits for piece in self.pieces if piece.more > sent)
        return max(map(encoding.least_more, going), default=1)

    def plane(self, rank: int, step: int, encoding: Encoding) -> Tensor:
        """The bytes by which a rank refines all pieces by its next `step` bits: uint8."""
        planes = []
        for piece in self.pieces:
            if more := piece.following(self.sent[rank], step):
                bits = piece.parts[rank].bits
                planes.append(plane_of(piece.cut, bits, encoding.refined(bits, more), encoding))
        if not planes:
            return torch.empty(0, dtype=torch.uint8, device=self.pieces[0].cut.device)
        return planes[0] if len(planes) == 1 else torch.cat(planes)

    def plane_bytes(self, rank: int, step: int, encoding: Encoding) -> int:
        """The number of those bytes."""
        return sum(size for *_, size in self._following(rank, step, encoding))

    def _following(self, rank: int, step: int, encoding: Encoding) -> list[tuple[Payload, int, int]]:
        """A rank's payloads that its next `step` bits refine, the bits that each then has, and the bytes that
        this takes."""
        found = []
        for piece in self.pieces:
            part = piece.parts[rank]
            if more := piece.following(self.sent[rank], step):
                refined = encoding.refined(part.bits, more)
                size = encoding.refinement_bytes(part.numel, part.bits, refined)
                found.append((part, refined, size))
        return found

    def refine(self, rank: int, step: int, came: Tensor, encoding: Encoding) -> None:
        """Adds a rank's next `step` bits, `came`, to its payloads."""
        begin = 0
        for part, refined, size in self._following(rank, step, encoding):
            part.refine(came[begin : begin + size], refined)
            begin += size
        self.sent[rank] += step

    def mean(self) -> Tensor:
        """The mean over the ranks: (numel,) float32."""
        return mean_of_pieces([piece.parts for piece in self.pieces], self.pieces[0].cut.device)


def mean_of_pieces(pieces: Sequence[Sequence[Payload]], device: torch.device) -> Tensor:
    """The mean over the ranks of a block in `pieces`, each with all ranks' payloads: (numel,) float32."""
    means = [mean_of(parts, device) for parts in pieces]
    return means[0] if len(means) == 1 else torch.cat(means)
