"""The compiled kernels of linear quantizers."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.linear.message import MessageFormat
from gradwire.codecs.native.call import run
from gradwire.codecs.native.loading import Library


def quantize(
    library: Library,
    x: Tensor,
    message: Tensor,
    form: MessageFormat,
    hadamard: bool,
    random: tuple[int, int, int, int] | None,
) -> None:
    """See `definition.linear_quantize`; `random` is first, key0, key1, rank, None for rounding to nearest."""
    numel = x.numel()
    first, key0, key1, rank = random or (0, 0, 0, 0)
    run(
        library,
        "linear_quantize",
        x.device,
        x=(x, numel),
        message=(message, form.num_bytes(numel)),
        numel=numel,
        first=first,
        bits=form.bits,
        group=form.group,
        scale_dtype=_scale_dtype(library, form),
        hadamard=hadamard,
        stochastic=random is not None,
        key0=key0,
        key1=key1,
        rank=rank,
    )


def decode(
    library: Library, operation: str, messages: Tensor, out: Tensor, form: MessageFormat, hadamard: bool
) -> None:
    """`linear_dequantize` or `linear_add` of a message, `linear_reduce` of several: see their definitions.
    `messages` is (m, num_bytes) uint8, with any distance between rows."""
    numel = out.numel()
    run(
        library,
        operation,
        out.device,
        messages=(messages[0], form.num_bytes(numel)),
        stride=messages.stride(0),
        out=(out, numel),
        numel=numel,
        count=len(messages),
        bits=form.bits,
        group=form.group,
        scale_dtype=_scale_dtype(library, form),
        hadamard=hadamard,
    )


def _scale_dtype(library: Library, form: MessageFormat) -> int:
    return library.constant(f"GRADWIRE_{form.scales.upper()}")
