"""The compiled kernels of THC."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.native.call import run
from gradwire.codecs.native.loading import Library
from gradwire.codecs.thc.blocks import Blocks
from gradwire.codecs.thc.table import QuantizationTable, neighbours

_TILE = 1 << 14
"""Coordinates whose energy is added up at a time."""


def root_mean_squares(library: Library, x: Tensor, blocks: Blocks, out: Tensor) -> None:
    """Fill `out`, (blocks,) float32, from the bucket `x`, (numel,) float32 or bfloat16."""
    tiles = -(-blocks.total // _TILE) if blocks.largest > _TILE else 0
    maxima = torch.empty(tiles, dtype=torch.int32, device=x.device)
    energies = torch.empty(tiles, dtype=torch.float32, device=x.device)
    run(
        library,
        "thc_root_mean_squares",
        x.device,
        x=(x, blocks.numel),
        numel=blocks.numel,
        block=blocks.largest,
        maxima=(maxima, tiles),
        energies=(energies, tiles),
        root_mean_squares=(out, blocks.count),
    )


def quantize(
    library: Library,
    x: Tensor,
    root_mean_squares: Tensor,
    t_p: float,
    blocks: Blocks,
    table: QuantizationTable,
    key: Sequence[int],
    rank: int,
    integers: Tensor,
    key_place: Tensor | None,
) -> None:
    """Fill `integers`, (total,) int32, from the bucket `x`, (numel,) float32 or bfloat16.

    `key_place` (2,) int32 has the key's words, None: they are those of `key`.
    """
    values = None if table.is_uniform else neighbours(table, x.device)
    run(
        library,
        "thc_quantize",
        x.device,
        x=(x, blocks.numel),
        numel=blocks.numel,
        block=blocks.largest,
        root_mean_squares=(root_mean_squares, blocks.count),
        table=(values, 2 * (table.granularity + 1)),
        integers=(integers, blocks.total),
        t_p=t_p,
        granularity=table.granularity,
        key0=key[0],
        key1=key[1],
        key_place=(key_place, 2),
        rank=rank,
    )


def dequantize(
    library: Library,
    sums: Tensor,
    peak: int,
    root_mean_squares: Tensor,
    t_p: float,
    blocks: Blocks,
    key: Sequence[int],
    mean: Tensor,
    key_place: Tensor | None,
) -> None:
    """Fill `mean`, (total,) float32 or bfloat16, from `sums`, (total,) int32 in [0, peak]; `key_place` as
    `quantize` takes it.

    Large blocks need room for float32 values on the way, which a float32 `mean` is.
    """
    between = mean
    if mean.dtype != torch.float32:
        is_large = blocks.largest > library.constant("GRADWIRE_THC_SMALL_BLOCK")
        between = torch.empty(blocks.total if is_large else 0, dtype=torch.float32, device=sums.device)
    run(
        library,
        "thc_dequantize",
        sums.device,
        sums=(sums, blocks.total),
        total=blocks.total,
        block=blocks.largest,
        root_mean_squares=(root_mean_squares, blocks.count),
        between=(between, between.numel()),
        mean=(mean, blocks.total),
        t_p=t_p,
        peak=peak,
        key0=key[0],
        key1=key[1],
        key_place=(key_place, 2),
    )
