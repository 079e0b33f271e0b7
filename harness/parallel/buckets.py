"""DistributedDataParallel's buckets as layouts, and the order in which it lays gradients out in them.

DDP gives a gradient the strides of its parameter if they leave no gaps: the gradient of a transposed view is
stored column by column, that of a convolution in `torch.channels_last` channel by channel. Codecs that treat
gradients as matrices, and the state that codecs keep for coordinates, need an order that does not depend on
strides.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from gradwire.codecs.interface import Layout
from gradwire.harness.parallel.gradient_error import MeasuredBucket

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""Prefixes that torch.compile and activation checkpointing add to the names of the parameters they wrap."""


def parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, tied ones once. Names are those of the unwrapped model, so that a codec's globs
    and saved state are the same with and without torch.compile."""
    return {plain_name(name): parameter for name, parameter in model.named_parameters()}


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes that wrappers add."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


Strides = tuple[int, ...]


def permuted_strides(parameter: Tensor) -> Strides | None:
    """The strides of a parameter whose gradient is stored in a different order than its shape's; None for all
    others, including those with gaps or overlaps, whose gradients DDP makes contiguous."""
    if parameter.is_contiguous():
        return None
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size != 1 and stride != expected:
            return None
        expected *= size
    return tuple(parameter.stride())


@dataclass(frozen=True)
class MemoryOrder:
    """The order of a bucket of `layout` in memory: the parameters one after another, those in `permuted`
    stored with the given strides."""

    layout: Layout
    permuted: Mapping[str, Strides]

    def logical(self, flat: Tensor) -> Tensor:
        """A bucket, (numel,), with each parameter in the order of its shape; the same tensor if it already
        is."""
        if not self.permuted:
            return flat
        found = torch.empty_like(flat)
        for (_, source), (_, target) in zip(self.views(flat), self._in_order(found), strict=True):
            target.copy_(source)
        return found

    def in_memory(self, flat: Tensor) -> Tensor:
        """The inverse of `logical`."""
        if not self.permuted:
            return flat
        found = torch.empty_like(flat)
        for (_, source), (_, target) in zip(self._in_order(flat), self.views(found), strict=True):
            target.copy_(source)
        return found

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Views of each parameter in a bucket in memory order, by name, in the parameter's shape."""
        for name, part in self._in_order(flat):
            strides = self.permuted.get(name)
            yield name, part if strides is None else part.as_strided(part.shape, strides)

    def measured(self, read_raw: Callable[[], Tensor], mean: Tensor) -> MeasuredBucket:
        """A bucket of a measured step in the order of the layout, given bucket and mean in memory order."""
        return MeasuredBucket(lambda: self.logical(read_raw()), self.logical(mean))

    def _in_order(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        layout = self.layout
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            yield name, flat[offset : offset + math.prod(shape)].view(shape)


class BucketLayouts:
    """Names the parameters in a bucket; makes one layout per distinct bucket.

    `refuse` returns the reason why a bucket cannot be synchronized, or None; a reason raises ValueError.
    """

    def __init__(self, model: nn.Module, refuse: Callable[[Layout], str | None]) -> None:
        self._refuse = refuse
        named = parameter_names(model)
        self._names = {id(parameter): name for name, parameter in named.items()}
        self._shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        self._dtypes = {name: parameter.dtype for name, parameter in named.items()}
        strides = {name: permuted_strides(parameter) for name, parameter in named.items()}
        self._permuted = {name: found for name, found in strides.items() if found is not None}
        self._known: dict[tuple[tuple[str, ...], torch.dtype], Layout] = {}

    def check(self, buckets: Sequence[tuple[str, ...]], device: torch.device) -> list[Layout]:
        """Returns the layouts of the buckets of these parameters, those of the first backward pass. Raises
        ValueError unless they can be synchronized. Buckets that DDP makes later are checked when they
        appear."""
        found = []
        for names in buckets:
            dtype = self._dtypes[names[0]]
            try:
                found.append(self.named(names, dtype, device))
            except ValueError as error:
                if dtype == torch.float32:  # the dtype is not the reason
                    raise
                raise ValueError(
                    f"{error}, as {names[0]} has; convert such parameters, or name them in exclude="
                ) from None
        return found

    def of(self, bucket: GradBucket) -> Layout:
        """The bucket's layout: parameters one after another, in the order in which their gradients become
        ready. `in_memory` gives their order in memory."""
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        layout = self.named(names, bucket.buffer().dtype, bucket.buffer().device)
        assert layout.numel == bucket.buffer().numel(), "a bucket has padding that its layout does not know"
        return layout

    def named(self, names: tuple[str, ...], dtype: torch.dtype, device: torch.device) -> Layout:
        """The layout of a bucket of the parameters `names`, in this order."""
        key = names, dtype
        if key not in self._known:
            shapes = tuple(self._shapes[name] for name in names)
            sizes = [math.prod(shape) for shape in shapes]
            offsets = tuple([0, *accumulate(sizes)][:-1])
            layout = Layout(names, shapes, offsets, sum(sizes), dtype, device)
            reason = self._refuse(layout)
            if reason is not None:
                raise ValueError(reason)
            self._known[key] = layout
        return self._known[key]

    def in_memory(self, layout: Layout) -> MemoryOrder:
        """The order in which DistributedDataParallel lays out a bucket of this layout."""
        own = {name: self._permuted[name] for name in layout.names if name in self._permuted}
        return MemoryOrder(layout, own)


def layout_hash(layouts: Sequence[Layout]) -> str:
    """16 hex digits that identify the buckets by names, shapes and dtypes, in order."""
    text = "\n".join(f"{layout.names} {layout.shapes} {layout.dtype}" for layout in layouts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
