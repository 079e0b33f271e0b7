"""The MX formats: block maxima, and elements of 8, 6 and 4 bits cast, added and restored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.mxfp import definition
from gradwire.codecs.mxfp.definition import block_maxima, num_blocks, write_maxima
from gradwire.codecs.mxfp.formats import FORMATS, ElementFormat, SharedScales
from gradwire.harness.studies.bench.operation import (
    TORCH_CAST,
    TORCH_CAST_BACK,
    TORCHAO,
    Case,
    Operation,
    Peer,
)

WORKERS = 8


def operations() -> Iterator[Operation]:
    yield Operation("mxfp.maxima", ("mxfp_maxima",), _maxima)
    for element in FORMATS.values():
        bits = element.width
        casts: tuple[Peer, ...] = (TORCH_CAST, TORCHAO) if bits == 8 else ()
        back: tuple[Peer, ...] = (TORCH_CAST_BACK,) if bits == 8 else ()
        yield Operation(f"mxfp.quantize.{bits}", ("mxfp_quantize",), partial(_quantize, element), casts)
        yield Operation(f"mxfp.add.{bits}", ("mxfp_add",), partial(_add, element))
        yield Operation(f"mxfp.copy.{bits}", (), partial(_copy, element))
        yield Operation(f"mxfp.dequantize.{bits}", ("mxfp_dequantize",), partial(_dequantize, element), back)


def _maxima(x: Tensor) -> Case:
    maxima = block_maxima(x)
    return Case(lambda: write_maxima(x, maxima), (x,), (maxima,))


def _packed(x: Tensor, element: ElementFormat) -> tuple[SharedScales, Tensor, Tensor]:
    """The scales, the bucket's packed elements, and a counter of saturated casts."""
    scales = SharedScales(block_maxima(x), float(WORKERS), "bf16_mu", WORKERS)
    saturated = torch.zeros((), dtype=torch.int64, device=x.device)
    size = num_blocks(x.numel()) * definition.block_bytes(element)
    out = torch.empty(size, dtype=torch.uint8, device=x.device)
    definition.quantize(x, scales, element, out, saturated)
    return scales, out, saturated


def _quantize(element: ElementFormat, x: Tensor) -> Case:
    scales, out, saturated = _packed(x, element)
    return Case(lambda: definition.quantize(x, scales, element, out, saturated), (x, scales.maxima), (out,))


def _add(element: ElementFormat, x: Tensor) -> Case:
    _, own, saturated = _packed(x, element)
    message = own.clone()
    return Case(lambda: definition.add(own, message, element, saturated), (own, message), (own,))


def _copy(element: ElementFormat, x: Tensor) -> Case:
    """Copies the packed elements to or from a message, because hops keep their own sums."""
    _, own, _ = _packed(x, element)
    message = torch.empty_like(own)
    return Case(lambda: message.copy_(own), (own,), (message,))


def _dequantize(element: ElementFormat, x: Tensor) -> Case:
    scales, packed, _ = _packed(x, element)
    out = torch.empty_like(x)
    return Case(lambda: definition.dequantize(packed, scales, element, out), (packed, scales.maxima), (out,))
