"""In which order messages hold super-groups: chunk after chunk, each in runs of one width, the largest first,
and by super-group index within a run (DynamiQ §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.dynamiq import order_compiled as compiled
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

COUNTED_WIDTHS = compiled.COUNTED_WIDTHS
"""Entries of a chunk's counts: one for each number of bits from 0 to 16."""


def message_order(widths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Super-group indices in the order of the messages, (total,) int64, and how many super-groups of each
    width every chunk has, (chunks, 17) int64.

    `widths` is (chunks, super-groups) int64 from 1 to 16; its entry (c, i) is super-group i·chunks + c, which
    exists if below `total`.
    """
    order = torch.empty(total, dtype=torch.int64, device=widths.device)
    counts = torch.empty(widths.shape[0], COUNTED_WIDTHS, dtype=torch.int64, device=widths.device)
    write_order(widths.contiguous(), order, counts)
    return order, counts


@operator("message_order(Tensor widths, Tensor(a!) order, Tensor(b!) counts) -> ()")
def write_order(widths: Tensor, order: Tensor, counts: Tensor) -> None:
    """Fill `order` and `counts`, both int64, from contiguous `widths`."""
    library = library_for(widths.device)
    if library is not None:
        compiled.message_order(library, widths, order, counts)
        return
    (chunks, length), total = widths.shape, order.numel()
    index = torch.arange(length, device=widths.device) * chunks
    index = index + torch.arange(chunks, device=widths.device)[:, None]
    absent = index >= total
    widths = widths.masked_fill(absent, 0)
    by_width = widths.argsort(dim=1, descending=True, stable=True)
    index = index.gather(1, by_width).flatten()
    order.copy_(index[index < total])
    counts.zero_().scatter_add_(1, widths, (~absent).to(torch.int64))
