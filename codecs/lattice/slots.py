"""The places of a bucket's super-groups in chunks and slots.

All slots of a bucket have as many super-groups, at most `codec.slot`. Which ones a chunk has is the same
in every round, so that a rank can keep it as its shard: by turns, the order of which changes every `ERA`
super-groups of a chunk, lest a chunk always has the same columns of a matrix. Within a chunk super-groups
are dealt to slots by a fixed pseudo-random permutation, so that all slots hold about the same energy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import mix32
from gradwire.codecs.options.dynamiq import SUPER_GROUP
from gradwire.codecs.shards import Shard, Stretches

ERA = 61
"""Super-groups of a chunk, one after another, that lie equally far apart in the bucket: a prime number, so
that no width of a matrix is a multiple of it."""

_PERMUTATION = 0x5107


def super_groups_of(numel: int) -> int:
    """Super-groups of a bucket, the last one possibly partial."""
    return -(-numel // SUPER_GROUP)


@dataclass(frozen=True)
class Slots:
    """The slots of a bucket of `numel` coordinates in `num_chunks` chunks of at most `most` super-groups a
    slot."""

    numel: int
    num_chunks: int
    most: int

    @property
    def rows(self) -> int:
        """Super-groups of the longest chunk."""
        return -(-super_groups_of(self.numel) // self.num_chunks)

    @property
    def per_chunk(self) -> int:
        """Slots of a chunk."""
        return -(-self.rows // self.most)

    @property
    def super_groups(self) -> int:
        """Super-groups of a slot."""
        return -(-self.rows // self.per_chunk)

    def turn(self, row: int) -> int:
        """The chunk that has the first of the `num_chunks` super-groups that are dealt in turn `row`."""
        return row // ERA % self.num_chunks

    def shard(self, chunk: int) -> Shard:
        """The coordinates of a chunk, ascending."""
        total, runs = super_groups_of(self.numel), list[Stretches]()
        for first in range(0, self.rows, ERA):
            start = first * self.num_chunks + (chunk - self.turn(first)) % self.num_chunks
            count = min(ERA, -(-(total - start) // self.num_chunks))
            if count <= 0:
                continue
            last = start + (count - 1) * self.num_chunks
            short = (last + 1) * SUPER_GROUP - self.numel
            whole = count - (short > 0)
            stride = self.num_chunks * SUPER_GROUP
            if whole:
                runs.append(Stretches(start * SUPER_GROUP, SUPER_GROUP, stride, whole))
            if short > 0:
                runs.append(Stretches(last * SUPER_GROUP, SUPER_GROUP - short))
        return Shard(tuple(runs))

    @cached_property
    def order(self) -> Tensor:
        """The super-group at each place: (chunks, slots, super-groups of a slot) int64; −1 where a place is
        empty."""
        total = super_groups_of(self.numel)
        row = torch.arange(self.rows, device="cpu")
        chunk = torch.arange(self.num_chunks, device="cpu")[:, None]
        there = row * self.num_chunks + (chunk - row // ERA) % self.num_chunks
        there = torch.where(there < total, there, -1)
        places = self.per_chunk * self.super_groups
        found = torch.full((self.num_chunks, places), -1, dtype=torch.int64, device="cpu")
        found[:, _permutation(places)[: self.rows]] = there
        return found.view(self.num_chunks, self.per_chunk, self.super_groups)

    @cached_property
    def ascending(self) -> Tensor:
        """For each place of a chunk in ascending order of super-groups, the place in `order`: (chunks, rows)
        int64. Places of super-groups that the bucket does not have come last."""
        flat = self.order.flatten(1)
        return torch.where(flat < 0, super_groups_of(self.numel), flat).argsort(dim=1, stable=True)[
            :, : self.rows
        ]


@lru_cache(maxsize=64)
def _permutation(count: int) -> Tensor:
    """A pseudo-random permutation of `count` places."""
    keys = mix32(torch.arange(count, dtype=torch.int64, device="cpu") ^ (_PERMUTATION << 16))
    return keys.argsort(stable=True)
