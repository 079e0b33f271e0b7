"""The uncompressed references, BF16 and FP32: hops that cast and add, each in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.slice_pass import SlicePass
from gradwire.harness.studies.bench.operation import Case, Operation

WIRE = {"bf16": torch.bfloat16, "fp32": torch.float32}

WORKERS = 3
"""A number of workers by which dividing is not multiplying by a power of two."""


def operations() -> Iterator[Operation]:
    for name, wire in WIRE.items():
        for operation, make in _OPERATIONS.items():
            yield Operation(f"{name}.{operation}", ("cast_slice",), partial(make, wire))


def _message(wire: torch.dtype, x: Tensor) -> Tensor:
    return x.to(wire, copy=True).view(torch.uint8)


def _encode(wire: torch.dtype, x: Tensor) -> Case:
    out = _message(wire, x)
    return Case(lambda: SlicePass(wire).run(x, out=out), (x,), (out,))


def _sum(wire: torch.dtype, x: Tensor) -> Case:
    """The sum of a message and this worker's values, kept in float32."""
    message, sums = _message(wire, x), x.to(torch.float32, copy=True)
    return Case(lambda: SlicePass(wire).run(x, message, sums=sums), (x, message), (sums,))


def _add(wire: torch.dtype, x: Tensor) -> Case:
    """The sum of a message and this worker's values, encoded for the next hop."""
    message = _message(wire, x)
    out = torch.empty_like(message)
    return Case(lambda: SlicePass(wire).run(x, message, out=out), (x, message), (out,))


def _seal(wire: torch.dtype, x: Tensor) -> Case:
    """The sum encoded for all ranks, and the mean computed from that encoding."""
    message = _message(wire, x)
    out, mean = torch.empty_like(message), torch.empty_like(x)
    return Case(
        lambda: SlicePass(wire, WORKERS).run(x, message, out=out, mean=mean), (x, message), (out, mean)
    )


def _decode(wire: torch.dtype, x: Tensor) -> Case:
    """The mean, decoded from a message with the sum."""
    message, mean = _message(wire, x), torch.empty_like(x)
    return Case(lambda: SlicePass(wire, WORKERS).run(message, mean=mean), (message,), (mean,))


_OPERATIONS = {"encode": _encode, "sum": _sum, "add": _add, "seal": _seal, "decode": _decode}
