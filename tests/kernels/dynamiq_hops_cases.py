"""Chunks, coders and messages to run DynamiQ's hops on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from inputs import poisoned
from torch import Tensor

from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq.codebooks import chosen_values
from gradwire.codecs.dynamiq.definition import Coder, Dither, OrderedChunk
from gradwire.codecs.dynamiq.format import num_super_groups, numbers_of, used_bytes
from gradwire.codecs.dynamiq.hops import Hop, make_hop
from gradwire.codecs.options.dynamiq import SUPER_GROUP, Format

EPSILONS = {1: 0.1, 2: 0.5, 3: 0.4, 4: 0.25, 5: 0.15, 6: 0.1, 8: 0.06, 16: 0.1}
PAPER = (2, 4, 8)
ALL = (1, 2, 3, 4, 5, 6, 8, 16)
PLUS = (2, 3, 4, 5, 6, 8, 16)

CODERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "independent": {"rounding": "independent"},
    "ceil": {"scale_rounding": "ceil"},
    "group_32": {"group": 32},
    "every_width": {"widths": ALL},
    "fine": {"widths": ALL, "epsilon": 0.03},
    "distinct": {"widths": ALL, "values": "distinct", "group": 32, "scale_rounding": "ceil"},
    "plus": {
        "widths": PLUS,
        "values": "distinct",
        "group": 32,
        "scale_rounding": "ceil",
        "codebooks": 4,
    },
    "plus_16": {"widths": PLUS, "values": "distinct", "codebooks": 4},
    "uniform": {"widths": ALL, "values": "uniform", "scales": "bf16", "rounding": "independent"},
    "bf16_ceil": {"widths": ALL, "group": 32, "scales": "bf16", "scale_rounding": "ceil"},
    "bf16_distinct": {"widths": ALL, "scales": "bf16", "values": "distinct"},
    "single": {"widths": (4,), "scales": "bf16", "values": "uniform", "group": 32},
}
"""Settings by name, where they differ from the paper's."""


def make_coder(
    rank: int,
    workers: int,
    widths: tuple[int, ...] = PAPER,
    values: Any = "nonuniform",
    group: int = 16,
    scales: Any = "hierarchical",
    scale_rounding: Any = "stochastic",
    rounding: Any = "correlated",
    codebooks: int = 1,
    epsilon: float | None = None,
) -> Coder:
    cpu = torch.device("cpu")
    tables = {w: chosen_values(w, values, epsilon or EPSILONS[w], cpu, group, codebooks) for w in widths}
    dither = Dither((0x1234_5678, 0xDEAD_BEEF), rank, workers, rounding, group)
    return Coder(tables, dither, scale_rounding, Format(widths, group, scales, codebooks=codebooks))


@dataclass
class Chunk:
    """Some super-groups of a bucket of `numel` coordinates, in the order of a message."""

    numel: int
    coder: Coder
    dtype: torch.dtype = torch.float32
    seed: int = 0
    share: int = 1
    """Every share-th super-group is in the chunk."""

    order: Tensor = field(init=False)
    mean: Tensor = field(init=False)
    counts: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        total = num_super_groups(self.numel)
        order = torch.randperm(total, generator=generator).int()
        self.order = order[order % self.share == (total - 1) % self.share]
        self.mean = torch.randn(len(self.order), generator=generator) * 1e-3
        widths = self.coder.format.widths
        picks = torch.randint(len(widths), (len(self.order),), generator=generator)
        self.counts = {width: int((picks == index).sum()) for index, width in enumerate(widths)}

    def hop(self) -> Hop:
        counts = numbers_of(self.counts, self.order.device)
        return make_hop(self.numel, self.dtype, OrderedChunk(self.order, self.mean, counts), self.coder)

    def message(self, seed: int = 0) -> Tensor:
        return poisoned(align(used_bytes(self.counts, self.coder.format)) + 32, torch.uint8, seed)

    def rows(self, seed: int = 0) -> Tensor:
        return poisoned(len(self.order) * SUPER_GROUP, torch.float32, seed).view(-1, SUPER_GROUP)

    def result(self, seed: int = 0) -> Tensor:
        return poisoned(self.numel, self.dtype, seed)
