"""Linear quantizers (SDP4Bit, ZeRO++): quantize, dequantize, add and reduce, with and without the Hadamard
transform of every 32 coordinates; groups of 128, and of 2048 as used for weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.linear.quantizer import MESSAGES, LinearQuantizer, RoundingNoise
from gradwire.harness.studies.bench.operation import Case, Operation, deepspeed_quantizer

GROUP, LARGE_GROUP = 128, 2048

NOISE = RoundingNoise((0x1234_5678, 0x9ABC_DEF0), 0)


def operations() -> Iterator[Operation]:
    for bits in (4, 8):
        plain, smooth = (LinearQuantizer(bits, GROUP, hadamard=hadamard) for hadamard in (False, True))
        yield from _both("", f"{bits}", plain)
        yield from _both("_hadamard", f"{bits}", smooth)
        yield from _both("", f"{bits}.{LARGE_GROUP}", LinearQuantizer(bits, LARGE_GROUP))
        yield Operation(f"linear.add.{bits}", ("linear_add",), partial(_add, plain))
        yield Operation(f"linear.reduce.{bits}", ("linear_reduce",), partial(_reduce, plain))
        yield Operation(f"linear.reduce_hadamard.{bits}", ("linear_reduce",), partial(_reduce, smooth))
    random = LinearQuantizer(4, GROUP, rounding="stochastic")
    yield Operation("linear.quantize_stochastic.4", ("linear_quantize",), partial(_quantize, random))


def _both(suffix: str, label: str, quantizer: LinearQuantizer) -> Iterator[Operation]:
    peers = () if suffix else (deepspeed_quantizer(quantizer.bits, quantizer.group),)
    encode, decode = partial(_quantize, quantizer), partial(_dequantize, quantizer)
    yield Operation(f"linear.quantize{suffix}.{label}", ("linear_quantize",), encode, peers)
    yield Operation(f"linear.dequantize{suffix}.{label}", ("linear_dequantize",), decode)


def _message(quantizer: LinearQuantizer, x: Tensor) -> tuple[Tensor, RoundingNoise | None]:
    """The bucket's message, and the noise used for rounding."""
    noise = NOISE if quantizer.rounding == "stochastic" else None
    out = torch.empty(quantizer.message_bytes(x.numel()), dtype=torch.uint8, device=x.device)
    quantizer.quantize(x, out, noise)
    return out, noise


def _quantize(quantizer: LinearQuantizer, x: Tensor) -> Case:
    message, noise = _message(quantizer, x)
    return Case(lambda: quantizer.quantize(x, message, noise), (x,), (message,))


def _dequantize(quantizer: LinearQuantizer, x: Tensor) -> Case:
    (message, _), out = _message(quantizer, x), torch.empty_like(x)
    return Case(lambda: quantizer.dequantize(message, out), (message,), (out,))


def _add(quantizer: LinearQuantizer, x: Tensor) -> Case:
    (message, _), target = _message(quantizer, x), x.clone()
    return Case(lambda: quantizer.add(message, target), (message, target), (target,))


def _reduce(quantizer: LinearQuantizer, x: Tensor) -> Case:
    """Reduces the messages of several workers, which are identical here."""
    message, out = _message(quantizer, x)[0], torch.empty_like(x)
    messages = message.repeat(MESSAGES, 1)
    return Case(lambda: quantizer.reduce(messages, out), (messages,), (out,))
