"""Codecs whose message is a slice's codes and scales: QSGD's levels, 1-bit SGD's signs, TFP's truncation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.onebit import SignCoder
from gradwire.codecs.qsgd import LevelCoder
from gradwire.codecs.slices import GroupCoder
from gradwire.codecs.tfp.coder import Refinement, coder_of, plane_bytes
from gradwire.harness.studies.bench.operation import Case, Operation

RANDOM = CoordinateBits((0x1234_5678, 0x9ABC_DEF0), 0)

GROUP, BLOCK = 512, 512

BITS, MORE = 8, 12
"""Bits per coordinate of a payload, and of the payload that a plane refines it to."""

REFINEMENT = Refinement(BITS, MORE, "embedded")


KERNELS = {"add_encode": "encode", "refine_decode": "decode", "refine_add": "add"}
"""Operations that use another operation's kernel, with a message to add or with a plane."""


def operations() -> Iterator[Operation]:
    for bits in (2, 4, 8):
        yield from _coder("levels", f"{bits}", LevelCoder(GROUP, bits, "max", RANDOM))
    yield from _coder("levels", "4.l2", LevelCoder(GROUP, 4, "l2", RANDOM))
    yield from _coder("signs", "1", SignCoder(BLOCK, 1))
    for bits, base in ((4, "scaled"), (6, "scaled"), (8, "plain"), (12, "plain"), (6, "embedded")):
        random = None if base == "embedded" else RANDOM
        yield from _coder("tfp", f"{bits}.{base}", coder_of(bits, base, random))
    for name, make in _PLANES.items():
        yield Operation(f"tfp.{name}.{BITS}to{MORE}", (f"tfp_{KERNELS.get(name, name)}",), make)


def _coder(family: str, label: str, coder: GroupCoder) -> Iterator[Operation]:
    for name, make in _CODERS.items():
        yield Operation(
            f"{family}.{name}.{label}", (f"{family}_{KERNELS.get(name, name)}",), partial(make, coder)
        )


def _message(coder: GroupCoder, x: Tensor) -> Tensor:
    message = torch.empty(coder.num_bytes(x.numel()), dtype=torch.uint8, device=x.device)
    coder.encode(x, 0, message)
    return message


def _encode(coder: GroupCoder, x: Tensor) -> Case:
    message = _message(coder, x)
    return Case(lambda: coder.encode(x, 0, message), (x,), (message,))


def _decode(coder: GroupCoder, x: Tensor) -> Case:
    message, values = _message(coder, x), torch.empty(x.numel(), device=x.device)
    return Case(lambda: coder.decode_into(message, 0, values), (message,), (values,))


def _add(coder: GroupCoder, x: Tensor) -> Case:
    message, sums = _message(coder, x), torch.zeros(x.numel(), device=x.device)
    return Case(lambda: coder.accumulate(message, 0, sums), (message, sums), (sums,))


def _add_encode(coder: GroupCoder, x: Tensor) -> Case:
    """A whole hop: adds a message to float32 sums and encodes the result as a message."""
    message, sums = _message(coder, x), x.to(torch.float32, copy=True)
    out = torch.empty_like(message)
    return Case(lambda: coder.accumulate_encode(message, 0, sums, out), (message, sums), (out,))


_CODERS: dict[str, Callable[[GroupCoder, Tensor], Case]] = {
    "encode": _encode,
    "decode": _decode,
    "add": _add,
    "add_encode": _add_encode,
}


def _refinement(x: Tensor) -> tuple[Tensor, Tensor]:
    """A payload of `BITS` and the plane that refines it to `MORE`."""
    plane = torch.empty(plane_bytes(x.numel(), BITS, MORE), dtype=torch.uint8, device=x.device)
    REFINEMENT.plane(x, plane)
    return _message(REFINEMENT.less_coder, x), plane


def _plane(x: Tensor) -> Case:
    _, plane = _refinement(x)
    return Case(lambda: REFINEMENT.plane(x, plane), (x,), (plane,))


def _refine(x: Tensor) -> Case:
    message, plane = _refinement(x)
    out = _message(REFINEMENT.coder, x)
    return Case(lambda: REFINEMENT.join(message, plane, x.numel(), out), (message, plane), (out,))


def _refine_decode(x: Tensor) -> Case:
    message, plane = _refinement(x)
    values = torch.empty(x.numel(), device=x.device)
    return Case(lambda: REFINEMENT.decode(message, plane, values), (message, plane), (values,))


def _refine_add(x: Tensor) -> Case:
    message, plane = _refinement(x)
    sums = torch.zeros(x.numel(), device=x.device)
    return Case(lambda: REFINEMENT.add(message, plane, sums), (message, plane, sums), (sums,))


_PLANES: dict[str, Callable[[Tensor], Case]] = {
    "plane": _plane,
    "refine": _refine,
    "refine_decode": _refine_decode,
    "refine_add": _refine_add,
}
