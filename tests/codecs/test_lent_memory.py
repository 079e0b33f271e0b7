"""Memory is handed out again only when no tensor holds it, and never to two tensors at a time."""

from __future__ import annotations

import torch

from gradwire.codecs.memory import FreeBlocks

SIZE = 1 << 12


def test_a_block_is_free_when_the_last_view_of_it_is_gone() -> None:
    blocks = FreeBlocks()
    first = blocks.take(SIZE)
    where, view = first.data_ptr(), first[100:].view(torch.float32)
    del first
    assert blocks.num_bytes == 0
    assert blocks.take(SIZE).data_ptr() != where
    del view
    assert where in {blocks.take(SIZE).data_ptr() for _ in range(2)}


def test_blocks_in_use_are_different_ones() -> None:
    blocks = FreeBlocks()
    held = [blocks.take(SIZE) for _ in range(5)]
    for index, block in enumerate(held):
        block.fill_(index)
    assert [int(block.unique()) for block in held] == list(range(5))
    assert blocks.num_bytes == 0


def test_what_is_kept_is_limited() -> None:
    blocks = FreeBlocks(limit=2 * SIZE)
    held = [blocks.take(SIZE) for _ in range(5)]
    del held
    assert blocks.num_bytes == 2 * SIZE
