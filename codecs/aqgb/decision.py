"""The decision that all ranks follow: what it holds, how it is read, and which ones a file may not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gradwire.codecs.adaptation import Numbers
from gradwire.codecs.aqgb.encoding import FULL, Encoding
from gradwire.codecs.aqgb.pieces import coarsest, more_of, pieces_of
from gradwire.codecs.interface import Decision

SPLIT = "split"
"""If leftovers are requantized, the entry that says how many coordinates of each block are sent with each
block's bits, row by row."""

SENT = "sent"
"""The number of further bits sent in the step before the last, by block and rank."""

LONGEST_S = 1e9
"""No step takes so many seconds."""

LARGEST_BLOCK = 2**48
"""No block has so many coordinates."""

DECIDES: Mapping[str, Numbers] = {
    "first": Numbers(2, FULL, whole=True),
    "more": Numbers(0, FULL - 2, whole=True),
    "deadlines": Numbers(-LONGEST_S, LONGEST_S),
    SENT: Numbers(0, FULL - 2, whole=True),
}
DECIDES_SPLIT = {**DECIDES, SPLIT: Numbers(0, LARGEST_BLOCK, whole=True)}


def refuses_decision(decision: Decision, encoding: Encoding, partition: int) -> str | None:
    """The reason why a decision cannot be one of a codec with this encoding; None if it can."""
    first, more, deadlines, sent = (listed(decision, n) for n in ("first", "more", "deadlines", SENT))
    if not len(first) == len(more) == len(deadlines):
        return f"first, more and deadlines are of {len(first)}, {len(more)} and {len(deadlines)} blocks"
    if SPLIT in decision and (reason := _refuses_split(wholes(decision, SPLIT), len(first), partition)):
        return reason
    for block, others in enumerate(more):
        pieces = pieces_of(wholes(decision, "first"), wholes(decision, SPLIT), block, 1)
        bits = coarsest(pieces)
        if bits + others > FULL:
            return f"first and more are above {FULL} bits of a block together"
        if others and not any(more_of(piece.bits, bits, int(others), encoding) for piece in pieces):
            least = encoding.least_more(bits)
            return f"more is {others:g} of a block of {bits:g} bits, which {least} refine"
    if not sent or len(sent) % (len(first) or 1):
        return f"{SENT} has {len(sent)} numbers, not one for each block and rank"
    return None


def _refuses_split(split: Sequence[int], blocks: int, partition: int) -> str | None:
    """The reason why `blocks` blocks cannot be split in this way; None if they can."""
    if len(split) != blocks * blocks:
        return f"{SPLIT} has {len(split)} numbers, and {blocks} blocks have {blocks * blocks}"
    for block in range(blocks):
        row = split[block * blocks : (block + 1) * blocks]
        if any(row[:block]):
            return f"{SPLIT} has coordinates of block {block} before it appears"
        *before, _ = own = [numel for numel in row if numel] or [0]
        if not any(own):
            return f"{SPLIT} has no coordinates of block {block}"
        if odd := next((numel for numel in before if numel % partition), None):
            return (
                f"{SPLIT} has {odd} coordinates of block {block}, no multiple of codec.partition={partition}"
            )
    return None


def refuses_in(decision: Decision, sizes: Mapping[int, int], ranks: int) -> str | None:
    """The reason why a decision does not cover the blocks of these `sizes` and as many ranks; None if it
    does."""
    blocks, planned = len(sizes), len(listed(decision, "first"))
    if planned not in (0, blocks):
        return f"first is of {planned} blocks, and this run has {blocks}"
    sent, pairs = len(listed(decision, SENT)), blocks * ranks
    if sent != pairs:
        return f"{SENT} has {sent} numbers; {blocks} blocks and {ranks} ranks have {pairs}"
    split = wholes(decision, SPLIT)
    for block in range(blocks if split else 0):
        own = sum(split[block * blocks : (block + 1) * blocks])
        if own != sizes[block]:
            return f"{SPLIT} has {own} coordinates of block {block}, which has {sizes[block]}"
    return None


def listed(decision: Decision, name: str) -> Sequence[float]:
    return cast(Sequence[float], decision[name])


def wholes(decision: Decision, name: str) -> list[int]:
    """A decision's list of whole numbers; empty if it has none."""
    values: Any = decision.get(name, [])
    return list(values)


def number(decision: Decision, name: str, bucket: int, otherwise: float) -> float:
    """A decision's entry for a bucket, or `otherwise` if the decision has none."""
    values: Any = decision.get(name, [])
    return float(values[bucket]) if bucket < len(values) else otherwise
