"""One round of DynamiQ, hop by hop (DynamiQ §3.4, §3.5)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.codecs.dynamiq import kernels
from gradwire.codecs.dynamiq.blocks import to_super_groups
from gradwire.codecs.dynamiq.plan import Plan
from gradwire.codecs.floats import constant


class DynamiQHops:
    """`LossyHops` of the mean-free super-groups: partial sums, float32, in the order of the messages."""

    def __init__(self, x: Tensor, workers: int, plan: Plan, coder: kernels.Coder) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to."""
        self._numel, self._dtype, self._workers = x.numel(), x.dtype, workers
        self._plan, self._coder = plan, coder
        self._sums = to_super_groups(x).index_select(0, plan.order).sub_(plan.mean[:, None])
        self._clear_padding()
        self._losses: Tensor | None = None

    def _clear_padding(self) -> None:
        """Undo the subtraction of the mean beyond the bucket's end, unless it made the super-group NaN."""
        total = self._plan.order.numel()
        padding = total * self._sums.shape[1] - self._numel
        if padding:
            row = self._plan.order == total - 1
            self._sums[:, -padding:].masked_fill_(row[:, None] & self._plan.mean.isfinite()[:, None], 0)

    def _each(self, chunks: range, message: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The chunks that have super-groups, with their parts of a message."""
        assert message.numel() == self.message_bytes(chunks, 1), "message length differs from message_bytes()"
        start = 0
        for chunk in chunks:
            stop = start + self._plan.message_bytes(chunk)
            if stop > start:
                yield chunk, message[start:stop]
            start = stop

    def message_bytes(self, chunks: range, workers: int) -> int:
        return sum(self._plan.message_bytes(chunk) for chunk in chunks)

    def encode(self, chunks: range, out: Tensor) -> None:
        for chunk, message in self._each(chunks, out):
            rows = self._plan.rows[chunk]
            super_groups, counts = self._plan.order[rows], self._plan.counts[chunk]
            kernels.compress(self._sums[rows], super_groups, counts, self._coder, message)
            self._add_losses(chunk, message)

    def accumulate(self, message: Tensor, chunks: range) -> None:
        for chunk, part in self._each(chunks, message):
            rows = self._sums[self._plan.rows[chunk]]
            kernels.decompress_accumulate(part, self._plan.counts[chunk], self._coder, rows)

    def accumulate_encode(self, message: Tensor, chunks: range, out: Tensor) -> None:
        incoming, outgoing = self._each(chunks, message), self._each(chunks, out)
        for (chunk, source), (_, target) in zip(incoming, outgoing, strict=True):
            rows = self._plan.rows[chunk]
            super_groups, counts = self._plan.order[rows], self._plan.counts[chunk]
            kernels.decompress_accumulate_recompress(
                source, self._sums[rows], super_groups, counts, self._coder, target
            )
            self._add_losses(chunk, target)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor) -> None:
        if message is None:
            self.encode(chunks, out)
        else:
            self.accumulate_encode(message, chunks, out)
        self.decode(out, chunks)

    def decode(self, message: Tensor, chunks: range) -> None:
        for chunk, part in self._each(chunks, message):
            rows = self._sums[self._plan.rows[chunk]]
            kernels.decompress(part, self._plan.counts[chunk], self._coder, rows)

    def finish(self) -> Tensor:
        mean = self._sums.div_(constant(self._workers, self._sums)).add_(self._plan.mean[:, None])
        return self._in_layout_order(mean).to(self._dtype)

    def _in_layout_order(self, rows: Tensor) -> Tensor:
        """(super-groups, 256) in the order of the messages as (numel,), without the padding."""
        return torch.empty_like(rows).index_copy_(0, self._plan.order, rows).view(-1)[: self._numel]

    def _add_losses(self, chunk: int, message: Tensor) -> None:
        if self._losses is not None:
            rows = self._plan.rows[chunk]
            decoded = torch.empty_like(self._sums[rows])
            kernels.decompress(message, self._plan.counts[chunk], self._coder, decoded)
            self._losses[rows] += self._sums[rows] - decoded

    def keep_losses(self) -> None:
        self._losses = torch.zeros_like(self._sums)

    def losses(self) -> Tensor:
        assert self._losses is not None, "losses() without keep_losses()"
        return self._in_layout_order(self._losses)
