"""DistributedDataParallel's buckets as layouts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import accumulate

from torch import nn
from torch._C._distributed_c10d import GradBucket

from gradwire.codecs.interface import Layout


class BucketLayouts:
    """Names the parameters in a bucket; layouts are made once per distinct bucket.

    `refuse` gives the reason why a bucket cannot be synchronized, or None; ValueError then.
    """

    def __init__(self, model: nn.Module, refuse: Callable[[Layout], str | None]) -> None:
        self._refuse = refuse
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._known: dict[tuple[int, ...], Layout] = {}

    def of(self, bucket: GradBucket) -> Layout:
        """The bucket's layout: parameters lie one after another, in the order gradients get ready."""
        parameters = bucket.parameters()
        key = tuple(id(parameter) for parameter in parameters)
        if key not in self._known:
            buffer = bucket.buffer()
            sizes = [parameter.numel() for parameter in parameters]
            assert sum(sizes) == buffer.numel(), "a bucket has padding that its layout does not know"
            layout = Layout(
                names=tuple(self._names[i] for i in key),
                shapes=tuple(tuple(parameter.shape) for parameter in parameters),
                offsets=tuple([0, *accumulate(sizes)][:-1]),
                numel=buffer.numel(),
                dtype=buffer.dtype,
                device=buffer.device,
            )
            reason = self._refuse(layout)
            if reason is not None:
                raise ValueError(reason)
            self._known[key] = layout
        return self._known[key]


def layout_hash(layouts: Sequence[Layout]) -> str:
    """16 hex digits identifying the buckets: names, shapes, dtypes, in order."""
    text = "\n".join(f"{layout.names} {layout.shapes} {layout.dtype}" for layout in layouts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
