"""The operators of PyTorch: the dispatcher runs them, they can be traced, and they are documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire.codecs.operators  # noqa: F401
from gradwire.codecs.arithmetic.bitpack import packed_bytes

OPERATORS = torch.ops.gradwire

NUMEL = 700

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def calls() -> dict[str, tuple[Any, ...]]:
    """By name, arguments of a call; what is to be dequantized was quantized by the matching operator."""
    x, codes = torch.randn(NUMEL), torch.arange(16, dtype=torch.int32)
    linear, mxfp, thc = (4, 128, "float32", True), (6, "bf16_mu", 1.5), (512, list(range(16)), 2.154, 7)
    seed, rank = 2**40 + 7, 1
    message = OPERATORS.linear_quantize(x, *linear, True, seed, rank)
    integers, root_mean_squares = OPERATORS.thc_quantize(x, *thc, rank)
    return {
        "hadamard": (torch.randn(3, 32),),
        "pack_bits": (codes, 5),
        "unpack_bits": (OPERATORS.pack_bits(codes, 5), 5),
        "linear_quantize": (x, *linear, True, seed, rank),
        "linear_dequantize": (message, NUMEL, *linear),
        "mxfp_quantize": (x, *mxfp),
        "mxfp_dequantize": (*OPERATORS.mxfp_quantize(x, *mxfp), NUMEL, *mxfp),
        "qsgd_quantize": (x, 8, 64, "l2", seed, rank),
        "qsgd_dequantize": (OPERATORS.qsgd_quantize(x, 8, 64, "l2", seed, rank), NUMEL, 8, 64),
        "onebit_quantize": (x, 64),
        "onebit_dequantize": (OPERATORS.onebit_quantize(x, 64), NUMEL, 64),
        "tfp_quantize": (x, 4, "scaled", True, seed, rank),
        "tfp_dequantize": (OPERATORS.tfp_quantize(x, 4, "scaled", True, seed, rank), NUMEL, 4, "scaled"),
        "thc_quantize": (x, *thc, rank),
        "thc_dequantize": (integers, root_mean_squares, NUMEL, 1, *thc),
    }


def registered() -> set[str]:
    schemas = torch._C._jit_get_all_schemas()
    return {schema.name.partition("::")[2] for schema in schemas if schema.name.startswith("gradwire::")}


def test_the_page_names_all_operators() -> None:
    assert set(calls()) == registered()
    assert set(re.findall(r"`gradwire::(\w+)`", PAGE.read_text())) == registered()


@pytest.mark.parametrize("name", sorted(calls()))
def test_pytorch_accepts_the_operator(name: str) -> None:
    torch.library.opcheck(getattr(OPERATORS, name).default, calls()[name])


@pytest.mark.parametrize("name", [name for name in sorted(calls()) if name.endswith("_dequantize")])
def test_what_was_quantized_comes_back(name: str) -> None:
    """One argument decides: the message of the matching operator."""
    torch.manual_seed(0)
    x = torch.randn(NUMEL)
    torch.manual_seed(0)
    values: Tensor = getattr(OPERATORS, name)(*calls()[name])
    assert values.shape == x.shape and values.dtype == torch.float32
    assert ((values - x).square().sum() / x.square().sum()).item() < 0.7
    assert torch.corrcoef(torch.stack((x, values)))[0, 1] > 0.7


def test_bits_come_back() -> None:
    codes = torch.arange(32, dtype=torch.int32)
    stream = OPERATORS.pack_bits(codes, 5)
    assert stream.numel() == packed_bytes(32, 5)
    assert torch.equal(OPERATORS.unpack_bits(stream, 5), codes)


def test_a_compiled_function_has_them_in_its_graph() -> None:
    def transmit(x: Tensor) -> Tensor:
        message = OPERATORS.onebit_quantize(x * 2, 64)
        return OPERATORS.onebit_dequantize(message, x.numel(), 64) / 2

    x = torch.randn(NUMEL)
    compiled = torch.compile(transmit, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), transmit(x))
