"""Times plain quantizers under torch.compile, which a codec's kernels have to beat; one JSON line each.

    python tests/gpu/measure_compiled.py [coordinates]

Nanoseconds per coordinate, the median of Triton's own benchmark, on normal gradients in bfloat16.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COORDINATES = 1 << 27


def int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of 128, rounded to the nearest of 8 bits."""
    groups = x.view(-1, 128).float()
    scales = groups.abs().amax(1, keepdim=True) / 127
    return torch.round(groups / scales.clamp_min(1e-30)).to(torch.int8), scales.bfloat16()


def int8_accumulate(codes: Tensor, scales: Tensor, sums: Tensor) -> Tensor:
    """Decode groups of `int8` and add them."""
    return sums + (codes.float() * scales.float()).view(-1)


def _int4(x: Tensor, to_integer: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    groups = x.view(-1, 128).float()
    scales = groups.abs().amax(1, keepdim=True) / 7
    codes = to_integer(groups / scales.clamp_min(1e-30)).to(torch.int32) & 15
    pairs = codes.view(-1, 64, 2)
    return (pairs[..., 0] | (pairs[..., 1] << 4)).to(torch.uint8), scales.bfloat16()


def int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of 128, rounded to the nearest of 4 bits, two codes a byte."""
    return _int4(x, torch.round)


def int4_stochastic(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `int4`, rounded stochastically."""
    return _int4(x, lambda values: torch.floor(values + torch.rand_like(values)))


def mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of 32 in FP8 E4M3 with a power of two as scale."""
    blocks = x.view(-1, 32).float()
    exponents = torch.floor(torch.log2(blocks.abs().amax(1, keepdim=True).clamp_min(1e-38))) - 8
    codes = (blocks * torch.exp2(-exponents)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, (exponents + 127).to(torch.uint8)


QUANTIZERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "int8_quantize": int8,
    "int4_quantize": int4,
    "int4_stochastic": int4_stochastic,
    "mxfp8_quantize": mxfp8,
}


COUNTERPARTS = {
    "int8_quantize": "linear.quantize.8",
    "int4_quantize": "linear.quantize.4",
    "int4_stochastic": "linear.quantize_stochastic.4",
    "mxfp8_quantize": "mxfp.quantize.8",
    "int8_dequantize_accumulate": "linear.add.8",
}
"""Our operations that do the same work."""


def line(name: str, ns_per_coordinate: float) -> str:
    """A line of `compiled.jsonl`, as the report reads it."""
    found = {"implementation": "torch.compile", "operation": name, "counterpart": COUNTERPARTS[name]}
    return json.dumps({**found, "dtype": "bfloat16", "ns_per_coordinate": ns_per_coordinate})


def _report(name: str, function: Callable[..., Any], *tensors: Tensor) -> None:
    from triton.testing import do_bench  # there is none on machines without a GPU

    compiled = torch.compile(function, dynamic=False)
    ms = do_bench(lambda: compiled(*tensors), warmup=30, rep=120, return_mode="median")
    print(line(name, 1e6 * ms / tensors[-1].numel()), flush=True)


def main(arguments: list[str]) -> None:
    """Time each quantizer and one decoder."""
    x = torch.randn(int(arguments[0]) if arguments else COORDINATES, device="cuda").bfloat16()
    for name, quantize in QUANTIZERS.items():
        _report(name, quantize, x)
    _report("int8_dequantize_accumulate", int8_accumulate, *int8(x), torch.zeros(x.numel(), device="cuda"))


if __name__ == "__main__":
    main(sys.argv[1:])
