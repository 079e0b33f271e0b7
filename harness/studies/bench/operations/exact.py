"""The uncompressed references, BF16 and FP32: the bucket copied, cast, added, restored and divided."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.sums import Cast
from gradwire.harness.studies.bench.operation import Case, Operation

WIRE = {"bf16": torch.bfloat16, "fp32": torch.float32}


def operations() -> Iterator[Operation]:
    for name, dtype in WIRE.items():
        coder = Cast(dtype)
        for operation, make in _OPERATIONS.items():
            yield Operation(f"{name}.{operation}", (), partial(make, coder))


def _sums(x: Tensor) -> Tensor:
    """The float32 copy of the bucket in which hops keep their partial sums."""
    return x.to(torch.float32, copy=True)


def _message(coder: Cast, x: Tensor) -> Tensor:
    out = torch.empty(coder.num_bytes(x.numel()), dtype=torch.uint8, device=x.device)
    coder.encode(_sums(x), 0, out)
    return out


def _copy(coder: Cast, x: Tensor) -> Case:
    sums = _sums(x)
    return Case(lambda: sums.copy_(x), (x,), (sums,))


def _encode(coder: Cast, x: Tensor) -> Case:
    sums, out = _sums(x), _message(coder, x)
    return Case(lambda: coder.encode(sums, 0, out), (sums,), (out,))


def _add_encode(coder: Cast, x: Tensor) -> Case:
    """The sum of a message and this worker's values, encoded for the next hop."""
    sums, message = _sums(x), _message(coder, x)
    out = torch.empty_like(message)
    return Case(lambda: coder.accumulate_encode(message, 0, sums, out), (sums, message), (out,))


def _decode(coder: Cast, x: Tensor) -> Case:
    sums, message = _sums(x), _message(coder, x)
    return Case(lambda: coder.decode_into(message, 0, sums), (message,), (sums,))


def _mean(coder: Cast, x: Tensor) -> Case:
    """The sum divided in place, in the bucket's dtype. By one worker: values halved again and again would
    become subnormal, and slow."""
    sums = _sums(x)
    workers = constant(1, sums)
    cast = () if x.dtype == sums.dtype else (sums, torch.empty_like(x))
    return Case(lambda: sums.div_(workers).to(x.dtype), (sums, *cast[:1]), (sums, *cast[1:]))


_OPERATIONS = {"copy": _copy, "encode": _encode, "add": _add_encode, "decode": _decode, "mean": _mean}
