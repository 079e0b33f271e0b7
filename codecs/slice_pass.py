"""One pass over a slice of a bucket: add a message, and write the sum as numbers, as a message or as a
mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.memory import empty
from gradwire.codecs.native.call import Call, pointer, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import BUCKETS

_OPERATION = "cast_slice"

_SOURCES = {torch.uint8: "first", torch.float32: "own"}
"""The field of `cast_slice` for the own numbers, by dtype; `x` for a bucket in bfloat16."""


@dataclass(frozen=True)
class SlicePass:
    """One pass over a slice: messages have `wire` numbers, a mean is a sum divided by `workers`."""

    wire: torch.dtype
    workers: int = 1

    def run(
        self,
        own: Tensor,
        message: Tensor | None = None,
        *,
        sums: Tensor | None = None,
        out: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> None:
        """Add a message to `own` in float32, and write the sum to what is given: `sums`, `out` or `mean`.

        `own` are (numel,) float32 or bfloat16 coordinates, or the bytes of a message, uint8. `sums`, float32,
        may be `own`. `out` is the message of the sum, `mean`, float32 or bfloat16, is the sum divided by
        the workers: with `out`, the sum that this message stands for.
        """
        wire, library = self.wire, library_for(own.device)
        if library is None:
            total = (own.view(wire) if own.dtype == torch.uint8 else own).to(torch.float32)
            if message is not None:
                total = total + message.view(wire)
            if sums is not None:
                sums.copy_(total)
            if out is not None:
                total = out.view(wire).copy_(total).to(torch.float32)
            if mean is not None:
                mean.copy_(total / constant(self.workers, total))
            return
        given, dtype, item = own.numel(), own.dtype, wire.itemsize
        numel = given // item if dtype == torch.uint8 else given
        num_bytes = numel * item
        if dtype == torch.bfloat16 and mean is not None and mean.dtype != dtype:
            own, dtype = own.to(torch.float32), torch.float32
        source = _SOURCES.get(dtype, "x")
        run(
            library,
            _OPERATION,
            own.device,
            **{source: (own, given)},
            message=(message, num_bytes),
            sums=(sums, numel),
            out=(out, num_bytes),
            mean=(mean, numel),
            numel=numel,
            wire=BUCKETS.index(wire),
            workers=self.workers,
        )


class BucketPass:
    """The passes over slices of one bucket in one round, and the sums and means that they make.

    Slices are given by their first and last places in the bucket, because a view of a tensor takes the host
    as long as a kernel's call: a call only changes the addresses. An instance must not be used by two threads
    at a time.
    """

    def __init__(self, x: Tensor, wire: torch.dtype, workers: int) -> None:
        """`x` is the bucket, (numel,) float32 or bfloat16, contiguous, as `SlicePass` has the others."""
        self._x, self._pass = x, SlicePass(wire, workers)
        self._sums: Tensor | None = None
        self._mean: Tensor | None = None
        library = library_for(x.device)
        self._call: Call | None = None
        if library is not None:
            fields = {"wire": BUCKETS.index(wire), "workers": workers}
            self._call = Call(library, _OPERATION, x.device, {"x": (x, x.numel()), **fields})
            self._x_at, self._x_item = x.data_ptr(), x.dtype.itemsize
            self._field = _SOURCES.get(x.dtype, "x")

    @property
    def sums(self) -> Tensor:
        """The stored sums, (numel,) float32, undefined where none has been written."""
        if self._sums is None:
            self._sums = empty(self._x.numel(), torch.float32, self._x.device)
        return self._sums

    @property
    def mean(self) -> Tensor:
        """The means, (numel,) in the bucket's dtype, undefined where none has been written."""
        if self._mean is None:
            self._mean = empty(self._x.numel(), self._x.dtype, self._x.device)
        return self._mean

    def run(
        self,
        place: slice,
        message: Tensor | None = None,
        *,
        summed: bool = False,
        first: Tensor | None = None,
        out: Tensor | None = None,
        sums: bool = False,
        mean: bool = False,
    ) -> None:
        """Add a message to the bucket's coordinates in `place`, to the stored sums there if they are
        `summed`, or to the message `first`; write the sum to the stored `sums`, to the message `out` and to
        the `mean`, as `SlicePass.run` does."""
        if self._call is None:
            own = first if first is not None else self.sums[place] if summed else self._x[place]
            into = self.sums[place] if sums else None
            means = self.mean[place] if mean else None
            self._pass.run(own, message, sums=into, out=out, mean=means)
            return
        start, numel, fields = place.start, place.stop - place.start, self._call.arguments
        num_bytes = numel * self._pass.wire.itemsize
        fields.x = fields.own = None
        fields.first = self._message(first, "first", num_bytes)
        if first is None:
            if summed:
                fields.own = self.sums.data_ptr() + 4 * start
            else:
                setattr(fields, self._field, self._x_at + self._x_item * start)
        fields.message = self._message(message, "message", num_bytes)
        fields.out = self._message(out, "out", num_bytes)
        fields.sums = self.sums.data_ptr() + 4 * start if sums else None
        fields.mean = self.mean.data_ptr() + self._x_item * start if mean else None
        fields.numel = numel
        self._call.run()

    def _message(self, message: Tensor | None, name: str, num_bytes: int) -> int | None:
        return pointer(message, _OPERATION, name, (torch.uint8,), num_bytes, self._x.device)
