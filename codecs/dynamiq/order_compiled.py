"""The compiled kernel of the order of messages."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "message_order"

COUNTED_WIDTHS = 17


class OrderArguments(ctypes.Structure):
    """`gradwire_order`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("widths", Pointer),
        ("chunks", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("order", Pointer),
        ("counts", Pointer),
    ]


def message_order(library: Library, widths: Tensor, order: Tensor, counts: Tensor) -> None:
    """Fill `order`, int64 (super-groups,), and `counts`, int64 (chunks, 17), from `widths`, int64 (chunks,
    super-groups of a chunk)."""
    chunks, length = widths.shape
    total, device = order.numel(), widths.device
    arguments = OrderArguments(
        widths=pointer(widths, OPERATION, "widths", (torch.int64,), chunks * length, device),
        chunks=chunks,
        length=length,
        total=total,
        order=pointer(order, OPERATION, "order", (torch.int64,), total, device),
        counts=pointer(counts, OPERATION, "counts", (torch.int64,), chunks * COUNTED_WIDTHS, device),
    )
    run(library, OPERATION, arguments, device)
