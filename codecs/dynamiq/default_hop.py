"""A hop of DynamiQ in plain PyTorch, put together from the operations that `definition` has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.codecs.dynamiq import definition
from gradwire.codecs.dynamiq.blocks import SUPER_GROUP, num_super_groups, to_super_groups
from gradwire.codecs.floats import constant


class DefaultHop:
    """The hops of one chunk in one round of one worker, see `hop.Hop`."""

    def __init__(
        self, numel: int, order: Tensor, mean: Tensor, counts: Mapping[int, int], coder: definition.Coder
    ) -> None:
        self._numel, self._order, self._mean = numel, order, mean
        self._counts, self._coder = counts, coder

    def run(
        self,
        *,
        x: Tensor | None = None,
        sums: Tensor | None = None,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
        new_sums: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        rows = self._total(x, sums, incoming)
        if outgoing is not None:
            definition.compress(rows, self._order, self._counts, self._coder, outgoing)
        if new_sums is not None:
            new_sums.copy_(rows)
        if result is not None:
            self._scatter(rows, result)

    def _total(self, x: Tensor | None, sums: Tensor | None, incoming: Tensor | None) -> Tensor:
        """What is given, added up: (super-groups, 256) float32, not to be kept."""
        if x is not None:
            rows = self._gathered(x)
        elif sums is not None:
            rows = sums.clone() if incoming is not None else sums
        else:
            assert incoming is not None, "nothing to sum"
            rows = torch.empty(self._order.numel(), SUPER_GROUP, device=self._order.device)
            definition.decompress(incoming, self._counts, self._coder, rows)
            return rows
        if incoming is not None:
            definition.decompress_accumulate(incoming, self._counts, self._coder, rows)
        return rows

    def _gathered(self, x: Tensor) -> Tensor:
        """The chunk's super-groups less their means; zeros beyond the bucket's end, unless a mean is NaN."""
        mean = self._mean[:, None]
        last = num_super_groups(self._numel) - 1
        whole = self._order.clamp(max=max(last - 1, 0))
        body = x[: last * SUPER_GROUP].view(-1, SUPER_GROUP)
        rows = body.index_select(0, whole).float() if last else torch.empty(len(mean), SUPER_GROUP).to(mean)
        end = to_super_groups(x[last * SUPER_GROUP :])
        rows = torch.where((self._order == last)[:, None], end, rows).sub_(mean)
        padding = (last + 1) * SUPER_GROUP - self._numel
        if padding:
            silent = (self._order == last)[:, None] & mean.isfinite()
            rows[:, -padding:].masked_fill_(silent, 0)
        return rows

    def _scatter(self, rows: Tensor, result: Tensor) -> None:
        """Write the means that sums stand for to their places in the bucket."""
        inverse = constant(1, rows).div(constant(self._coder.dither.workers, rows))
        mean = (rows * inverse).add_(self._mean[:, None]).to(result.dtype)
        last = num_super_groups(self._numel) - 1
        whole = (self._order < last).nonzero()[:, 0]
        body = result[: last * SUPER_GROUP].view(-1, SUPER_GROUP)
        body.index_copy_(0, self._order[whole], mean[whole])
        for row in (self._order == last).nonzero()[:, 0].tolist():
            end = result[last * SUPER_GROUP :]
            end.copy_(mean[row, : end.numel()])
