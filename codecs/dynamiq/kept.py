"""What the rounds of a bucket have in common where kernels are compiled, kept from round to round.

A round fills in what is its own: key, rank, and where its tensors are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from torch import Tensor

from gradwire.codecs.dynamiq.allocation import WidthIncrements
from gradwire.codecs.dynamiq.arrangement import Arrangement, Chunks, native_plan
from gradwire.codecs.dynamiq.definition import Coder
from gradwire.codecs.dynamiq.native import NativeHop
from gradwire.codecs.native.loading import Library

Item = TypeVar("Item")


class KeptRounds:
    """The plan of a bucket and the hops of its chunks: their tensors, and their calls filled in but for what
    is a round's own. For one round at a time."""

    def __init__(
        self, library: Library, x: Tensor, chunks: Chunks, increments: WidthIncrements, coder: Coder
    ) -> None:
        """`x` is a bucket like those that will come, `coder` one round's, among as many workers."""
        plan = native_plan(library, chunks, increments, coder.dither.workers, x.device)
        self._plan, self._chunks = plan, chunks
        self.hops = [
            NativeHop(library, x.numel(), x.dtype, plan.order[rows], plan.mean[rows], numbers, coder)
            for rows, numbers in zip(chunks.rows, plan.numbers, strict=True)
        ]

    def begin(
        self, mean_sum: Tensor | None, norm: Tensor | None, coder: Coder, exact_size: bool
    ) -> Arrangement:
        """A round's arrangement, from its reduced statistics (None: not sent); the hops are its from now on,
        and the arrangement's tensors until the next call."""
        plan = self._plan
        plan.run(mean_sum, norm)
        for hop in self.hops:
            hop.begin_round(coder.dither)
        return Arrangement(plan.order, plan.mean, plan.numbers, self._chunks, coder.format, exact_size)


class Pool(Generic[Item]):
    """Items that rounds take and give back: as many of a key as rounds were ever in flight at a time, on any
    threads. A copy of it, or what is made of its pickle, is an empty one."""

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Item]] = {}

    def take(self, key: Hashable, make: Callable[[], Item]) -> Item:
        """An item of this key that nobody has."""
        try:
            return self._free.setdefault(key, []).pop()
        except IndexError:
            return make()

    def give(self, key: Hashable, item: Item) -> None:
        """Hand back what `take` gave for `key`."""
        self._free[key].append(item)

    def __reduce__(self) -> tuple[type[Pool[Item]], tuple[()]]:
        return Pool, ()
