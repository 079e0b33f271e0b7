"""Hops of the lattice codec by compiled kernels, whose bytes and numbers are those of `hops`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.hops import Counter, Grid, LatticeHops
from gradwire.codecs.lattice.sink import coarser
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.loading import Library
from gradwire.codecs.options.dynamiq import SUPER_GROUP


@dataclass(frozen=True)
class HeldSum:
    """Partial sums of a chunk by place: 256 integers each, (places·256,) int32; shifts and marks, (places,)
    uint8."""

    sums: Tensor
    shifts: Tensor
    marks: Tensor

    @classmethod
    def empty(cls, places: int, device: torch.device) -> HeldSum:
        sums = torch.empty(places * SUPER_GROUP, dtype=torch.int32, device=device)
        shifts, marks = torch.empty(2, places, dtype=torch.uint8, device=device).unbind()
        return cls(sums, shifts, marks)

    @property
    def fields(self) -> dict[str, Any]:
        return {name: (each, each.numel()) for name, each in vars(self).items()}


class CompiledLatticeHops(LatticeHops):
    """Hops of a bucket on a lattice, by the kernels of `library`."""

    def __init__(
        self,
        x: Tensor,
        slots: Slots,
        grid: Grid,
        packed: bool,
        draws: Draws,
        count: Counter,
        library: Library,
        key_place: Tensor | None = None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to. `key_place` is
        that of the round: kernels read the key there, not from `draws`."""
        self._x, self._slots, self._grid, self._draws, self._count = x, slots, grid, draws, count
        self._library, self._values = library, readable(x).contiguous()
        self._order = _order_on(slots, x.device)
        self._held: dict[int, HeldSum] = {}
        self._sealed: set[int] = set()
        self._additions = [0] * slots.num_chunks
        self._means = torch.zeros(-(-x.numel() // SUPER_GROUP) * SUPER_GROUP, device=x.device)
        self._places = slots.per_chunk * slots.super_groups
        self._shared: dict[str, Any] = {
            "step": (grid.step.view(1), 1),
            "nothing": (grid.nothing.view(1).to(torch.uint8), 1),
            "means": (self._means, self._means.numel()),
            "numel": x.numel(),
            "slots": slots.per_chunk,
            "super_groups": slots.super_groups,
            "packed": int(packed),
            "workers": grid.workers,
            "coarser": coarser(grid.workers),
            "key0": draws.key[0],
            "key1": draws.key[1],
            "rank": draws.rank,
        }
        if key_place is not None:
            self._shared["key_place"] = (key_place, 2)

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for chunk, part in self._parts(chunks, out):
            given = self._kept(chunk) if chunk in self._held else self._own
            self._send("hop", chunk, part, workers, **given)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._parts(chunks, message):
            given = self._received(part, workers)
            if chunk in self._held:
                self._additions[chunk] += 1
                given |= self._kept(chunk) | {"turn": 1 + self._additions[chunk]}
            elif not self._is_sink(chunk):
                given |= self._own
            self._call("hop", chunk, **{**self._new(chunk), **given})

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        if any(chunk in self._held for chunk in chunks):
            super().accumulate_encode(message, chunks, out, received, workers)
            return
        parts = zip(self._parts(chunks, message), self._parts(chunks, out), strict=True)
        for (chunk, part), (_, sent) in parts:
            self._send("hop", chunk, sent, workers, **self._received(part, received), **self._own)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._parts(chunks, message):
            given = self._received(part, workers)
            if workers < self._grid.workers:
                self._held.pop(chunk, None)
                self._call("hop", chunk, **given, **self._new(chunk))
            else:
                self._call("unseal", chunk, **given)
                self._sealed.add(chunk)

    def finish(self) -> Tensor:
        for chunk in range(self._slots.num_chunks):
            if chunk not in self._sealed:
                self._unsealed_means(chunk)
        return self._means[: self._x.numel()].to(self._x.dtype)

    def _seal(self, chunk: int, out: Tensor, workers: int) -> None:
        self._send("seal", chunk, out, workers, **self._held.pop(chunk).fields, **self._own)

    def _mean(self, chunk: int) -> Tensor:
        self._unsealed_means(chunk)
        return self._means.view(-1, SUPER_GROUP)[self._order[chunk].clamp(min=0)]

    def _unsealed_means(self, chunk: int) -> None:
        own = self._own if self._is_sink(chunk) else {}
        self._call("means", chunk, **self._held[chunk].fields, **own)

    @property
    def _own(self) -> dict[str, Any]:
        return {"values": (self._values, self._values.numel())}

    def _kept(self, chunk: int) -> dict[str, Any]:
        return {**self._held[chunk].fields, "held": 1}

    def _new(self, chunk: int) -> dict[str, Any]:
        """Memory for the sums of a chunk."""
        if chunk not in self._held:
            self._held[chunk] = HeldSum.empty(self._places, self._x.device)
        return self._held[chunk].fields

    def _received(self, message: Tensor, workers: int) -> dict[str, Any]:
        size = self._grid.sizes[workers]
        used = self._slots.per_chunk * size // 8
        return {"message_in": (message[:used], used), "size_in": size}

    def _send(self, operation: str, chunk: int, out: Tensor, workers: int, **given: Any) -> None:
        size = self._grid.sizes[workers]
        used = self._slots.per_chunk * size // 8
        out[used:].zero_()
        wanted = torch.empty(self._slots.per_chunk, dtype=torch.int64, device=self._x.device)
        given |= {"message_out": (out[:used], used), "size_out": size}
        self._call(operation, chunk, wanted=(wanted, wanted.numel()), contributions=workers, **given)
        self._count(workers, wanted)

    def _call(self, operation: str, chunk: int, **given: Any) -> None:
        sinks, workers, rank = self._grid.sinks, self._grid.workers, self._draws.rank
        index, count = rank, workers
        if sinks is not None:
            index, count = (rank - sinks[chunk] - 1) % workers, workers - 1
        run(
            self._library,
            f"lattice_{operation}",
            self._x.device,
            order=(self._order[chunk].reshape(-1), self._places),
            exact=int(sinks is None or self._is_sink(chunk)),
            index=index,
            count=count,
            **self._shared,
            **given,
        )


@lru_cache(maxsize=256)
def _order_on(slots: Slots, device: torch.device) -> Tensor:
    """The order of slots on a device. A round that is captured in a graph can copy nothing from the host."""
    return slots.order.to(device)
