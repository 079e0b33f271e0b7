"""Buckets so large that every kernel's loop over the grid turns more than once: the bytes of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import paper_increments
from gradwire.codecs.dynamiq.arrangement import ArrangementRule, Chunks, arrange
from gradwire.codecs.dynamiq.format import ChunkSize
from gradwire.codecs.native.choice import available_kernels, using_kernels
from gradwire.codecs.native.loading import library
from gradwire.codecs.options.dynamiq import Format
from gradwire.harness.comm.collective.metadata import MetadataHops
from gradwire.harness.studies.bench.operation import Case, all_operations, chosen_operations

on_a_gpu = pytest.mark.skipif(
    not {"cpu", "cuda"} <= {*available_kernels()}, reason="needs a CUDA device and the kernels of both"
)

emulated = pytest.mark.skipif(
    library("cpu") is None or library("emulated") is None,
    reason="the kernels for CPUs or the emulation of CUDA are not built",
)

NUMEL = 2 * (132 * 8) * 256 * 64 + 1237
"""Two turns of a device with 132 multiprocessors, on each of which 8 blocks of 256 threads are at a time, of
kernels whose threads take 64 coordinates (SDP4Bit's groups of 2048). `grid_of` in `csrc/cuda/launch.h` fills
the device once up to eight turns, and then goes towards four waves: those that take 16 coordinates, as most
do, have eight turns here, and more where fewer blocks are resident. The length is no multiple of anything."""

OF_A_KERNEL = (
    *(f"dynamiq.{name}.mix" for name in ("compress", "recompress", "accumulate", "decompress")),
    *("dynamiq.statistics", "dynamiq.plan", "dynamiq_plus.recompress.mix"),
    *("bf16.seal", "fp32.sum"),
    *("levels.encode.4.l2", "levels.decode.2", "levels.add.8", "levels.add_encode.8"),
    *(f"signs.{name}.1" for name in ("encode", "decode", "add", "add_encode")),
    *("tfp.encode.6.scaled", "tfp.decode.12.plain", "tfp.add.8.plain", "tfp.add_encode.4.scaled"),
    *(f"tfp.{name}.8to12" for name in ("plane", "refine", "refine_decode", "refine_add")),
    *("linear.quantize.4.2048", "linear.quantize_stochastic.4", "linear.dequantize_hadamard.8"),
    *("linear.add.4", "linear.reduce_hadamard.8"),
    *("mxfp.maxima", "mxfp.quantize.8", "mxfp.add.6", "mxfp.dequantize.4"),
    *("bitpack.pack.12", "bitpack.unpack.3", "bitpack.add.8"),
    *("hadamard.transform.262144", "thc.quantize.largest", "thc.dequantize.largest"),
    *("omnireduce.energies.256", "edgc.histogram.4"),
)
"""One call or two of each kernel whose items are coordinates, by the names of the benchmark's operations."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

CALLS = [(each.name, dtype) for each in chosen_operations(OF_A_KERNEL) for dtype in each.dtypes]


@cache
def gradients(numel: int, dtype: torch.dtype) -> Tensor:
    """Heavy-tailed values on the CPU."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(numel, generator=generator)
    return x.mul_(torch.randn(numel, generator=generator).exp_()).to(dtype)


def run(case: Case) -> list[Tensor]:
    """The tensors that the case writes, on the CPU; they are filled with something else before."""
    read = {tensor.data_ptr() for tensor in case.reads}
    for tensor in case.writes:
        if tensor.data_ptr() not in read:
            tensor.view(torch.uint8).fill_(0x5B)
    case.run()
    for tensor in case.writes:
        if tensor.data_ptr() not in read:
            assert tensor.view(torch.uint8).ne(0x5B).any(), "nothing was written"
    return [tensor.cpu() for tensor in case.writes]


def assert_equal(found: Sequence[Tensor], wanted: Sequence[Tensor], name: str) -> None:
    for a, b in zip(found, wanted, strict=True):
        a, b = (tensor.reshape(-1).view(torch.uint8) for tensor in (a, b))
        assert torch.equal(a, b), f"{name}: {int((a != b).sum())} of {a.numel()} bytes differ"


def check(name: str, x: Tensor, kernels: str, device: str) -> None:
    """Asserts that kernels on a device write what those for the CPU write there."""
    (operation,) = chosen_operations([name])
    with using_kernels("cpu"):
        wanted = run(operation.make(x))
    with using_kernels(kernels):
        assert_equal(run(operation.make(x.to(device))), wanted, name)


def test_every_kernel_has_a_call() -> None:
    found = {kernel for operation in chosen_operations(OF_A_KERNEL) for kernel in operation.kernels}
    found |= {"thc_root_mean_squares", "metadata_hop"}
    assert found == {kernel for operation in all_operations() for kernel in operation.kernels}


@emulated
@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_the_calls_compare_what_was_written(name: str, dtype: str) -> None:
    """Buckets are short, and the sources for CUDA run on the CPU."""
    check(name, gradients(20_011, DTYPES[dtype]), "emulated", "cpu")


@on_a_gpu
@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_a_large_bucket_on_a_gpu_has_the_bytes_of_the_cpu(name: str, dtype: str) -> None:
    check(name, gradients(NUMEL, DTYPES[dtype]), "cuda", "cuda")


def check_norms(times: int, kernels: str, device: str) -> None:
    """`check` for THC's norms: a warp takes those of 16384 coordinates, of blocks that are larger."""
    x = gradients(NUMEL // times, torch.bfloat16).repeat(8)
    check("thc.root_mean_squares.largest", x, kernels, device)


def check_metadata(elements: int, kernels: str, device: str) -> None:
    """Asserts that statistics combined with a message of all of them are those of the CPU."""
    generator = torch.Generator().manual_seed(3)
    statistics = [torch.rand(elements, generator=generator).bfloat16() for _ in range(4)]
    found, chunks = [], range(8)
    for choice, place in (("cpu", "cpu"), (kernels, device)):
        mean, norm, *other = (tensor.to(place) for tensor in statistics)
        with using_kernels(choice):
            own = MetadataHops([(mean, "sum"), (norm, "norm")], len(chunks))
            others = MetadataHops([(other[0], "sum"), (other[1], "norm")], len(chunks))
            own.accumulate(others.messages_in_place(), chunks, 1)
        found.append([tensor.cpu() for tensor in own.results()])
    assert_equal(found[1], found[0], "metadata")


def check_one_width(super_groups: int, kernels: str, device: str) -> None:
    """Asserts that DynamiQ's plan for a single width, which has a kernel of its own, is that of the CPU."""
    generator = torch.Generator().manual_seed(2)
    statistics = [torch.rand(super_groups, generator=generator).bfloat16() for _ in range(2)]
    sizes = Chunks(tuple(ChunkSize(len(range(i, super_groups, 3)), 0, 0, False) for i in range(3)))
    found = []
    for choice, place in (("cpu", "cpu"), (kernels, device)):
        with using_kernels(choice):
            mean, norm = (tensor.to(place) for tensor in statistics)
            made = arrange(mean, norm, 5, sizes, ArrangementRule(paper_increments((4,)), Format((4,))))
        found.append([tensor.cpu() for tensor in (made.order, made.mean, made.numbers)])
    assert_equal(found[1], found[0], "a plan for one width")


@emulated
def test_the_calls_of_large_items_compare_what_was_written() -> None:
    check_norms(1000, "emulated", "cpu")
    check_metadata(30_011, "emulated", "cpu")
    check_one_width(3001, "emulated", "cpu")


@on_a_gpu
def test_many_large_items_on_a_gpu_have_the_bytes_of_the_cpu() -> None:
    """The items counted are not coordinates: 16384 of these, 2048 statistics of a block, 256 super-groups."""
    check_norms(1, "cuda", "cuda")
    check_metadata(2 * (132 * 8) * 2048 + 11, "cuda", "cuda")
    check_one_width(2 * (132 * 8) * 256 + 5, "cuda", "cuda")
