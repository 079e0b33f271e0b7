"""Every operation on a GPU: the bytes of the CPU, on any stream, in a graph, on any device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from operation_calls import OPERATIONS, call, calls_of_all
from torch import Tensor

from gradwire.codecs.native.choice import available_kernels, using_kernels

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif("cuda" not in available_kernels(), reason="the kernels for CUDA are not built"),
]

every_operation = pytest.mark.parametrize("name", sorted(OPERATIONS))
DTYPES = (torch.float32, torch.bfloat16)

OUTPUTS = {"dynamiq_hop": (3, 4, 5), "super_group_statistics": (1, 2)}
"""Arguments that hold an earlier call's result, with which a call that writes nothing would pass."""

ALIGNED = {"thc_dequantize"}
"""Operations that refuse results at other addresses than multiples of 16 bytes, which codecs use."""


def calls_of(name: str, numel: int, dtype: torch.dtype, special: bool = False) -> list[tuple[Any, ...]]:
    """The calls of an operation, with something else where the result is to be."""

    def emptied(index: int, argument: Any) -> Any:
        if not isinstance(argument, Tensor) or index not in OUTPUTS.get(name, ()):
            return argument
        return torch.full_like(argument.view(torch.uint8), 0x5B).view(argument.dtype)

    calls = calls_of_all(numel, dtype, special)[name]
    return [tuple(emptied(*each) for each in enumerate(arguments)) for arguments in calls]


def placed(arguments: tuple[Any, ...], device: str, offset: int = 0) -> list[Any]:
    """Copies of the arguments on a device; long ones of floats `offset` elements past an aligned address."""

    def copy(x: Tensor) -> Tensor:
        if offset and x.dim() == 1 and x.dtype in DTYPES and x.numel() > 1000:
            room = torch.empty(x.numel() + offset, dtype=x.dtype, device=device)
            room[offset:] = x
            return room[offset:]
        return x.clone().to(device)

    return [copy(a) if isinstance(a, Tensor) else a for a in arguments]


def assert_equal(on_gpu: list[Any], on_cpu: list[Any], name: str) -> None:
    """Asserts that the bytes are equal; any NaN equals any other."""
    for a, b in zip(on_gpu, on_cpu, strict=True):
        if not isinstance(a, Tensor):
            continue
        found, wanted = a.cpu(), b.cpu()
        if found.dtype.is_floating_point:
            assert torch.equal(found.isnan(), wanted.isnan()), name
            found, wanted = found.masked_fill(found.isnan(), 0), wanted.masked_fill(wanted.isnan(), 0)
        found, wanted = (x.reshape(-1).view(torch.uint8) for x in (found, wanted))
        assert torch.equal(found, wanted), f"{name}: {int((found != wanted).sum())} bytes differ"


def expected_of(name: str, arguments: tuple[Any, ...]) -> list[Any]:
    result = placed(arguments, "cpu")
    with using_kernels("auto"):
        call(name, *result)
    return result


@every_operation
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("numel", "special"), [(300, False), (3001, False), (200_003, False), (70_001, True)]
)
def test_a_gpu_gives_the_bytes_of_the_cpu(name: str, dtype: torch.dtype, numel: int, special: bool) -> None:
    if special and name == "tfp_add_encode":
        pytest.skip("a NaN's sign, which its message keeps, is the processor's")
    for arguments in calls_of(name, numel, dtype, special):
        for offset in (0, 1) if name not in ALIGNED else (0,):
            actual = placed(arguments, "cuda", offset)
            with using_kernels("cuda"):
                call(name, *actual)
            assert_equal(actual, expected_of(name, arguments), name)


def spoiled(arguments: list[Any]) -> list[Any]:
    """Zeros in the place of all tensors: an index that is not there yet is a valid one."""
    return [torch.zeros_like(a) if isinstance(a, Tensor) else a for a in arguments]


def fill(places: list[Any], arguments: list[Any]) -> None:
    """Copies the arguments' values, on the current stream and on the device alone."""
    for place, argument in zip(places, arguments, strict=True):
        if isinstance(argument, Tensor):
            place.copy_(argument)


@every_operation
def test_another_stream_and_a_graph(name: str) -> None:
    """An operation waits for what is before it on its stream; a captured one can be replayed.

    On the stream and in the replay the values come late: what ran elsewhere would read zeros, and what it
    wrote would be overwritten.
    """
    for arguments in calls_of(name, 70_001, torch.float32):
        expected, ready = expected_of(name, arguments), placed(arguments, "cuda")
        with using_kernels("cuda"):
            call(name, *placed(arguments, "cuda"))  # makes what is remembered per device
            late, captured = spoiled(ready), spoiled(ready)
            side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                fill(late, ready)
                call(name, *late)
            side.synchronize()
            assert_equal(late, expected, name)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                call(name, *captured)
            fill(captured, ready)
            graph.replay()
            torch.cuda.synchronize()
            assert_equal(captured, expected, name)


@every_operation
def test_the_current_device_stays_what_it_is(name: str) -> None:
    """The current device is the first; with several GPUs, tensors lie on the last."""
    last = f"cuda:{torch.cuda.device_count() - 1}"
    torch.cuda.set_device(0)
    for arguments in calls_of(name, 3001, torch.float32)[:1]:
        actual = placed(arguments, last)
        with using_kernels("cuda"):
            call(name, *actual)
        torch.cuda.synchronize(last)
        assert torch.cuda.current_device() == 0
        assert_equal(actual, expected_of(name, arguments), name)


def test_a_bucket_beyond_two_to_the_31() -> None:
    """The end of a huge bucket has the statistics that it has alone."""
    numel = (1 << 31) + 300
    if torch.cuda.mem_get_info()[0] < 3 * numel:
        pytest.skip("not enough memory on the GPU")
    x = torch.zeros(numel, dtype=torch.bfloat16, device="cuda")
    end = torch.randn(300, device="cuda").to(torch.bfloat16)
    x[-300:] = end
    total = -(-numel // 256)
    mean, norm = (torch.empty(total, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    alone = [torch.empty(2, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    with using_kernels("cuda"):
        call("super_group_statistics", x, mean, norm)
        call("super_group_statistics", end, *alone)
    assert torch.equal(mean[-2:], alone[0]) and torch.equal(norm[-2:], alone[1])
    assert not mean[:-2].any() and not norm[:-2].any()


def test_compute_sanitizer_finds_nothing() -> None:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not in PATH")
    program = Path(__file__).with_name("run_operations.py")
    for check in ("memcheck", "racecheck", "initcheck"):
        command = [tool, f"--tool={check}", "--error-exitcode=9", sys.executable, str(program)]
        environment = {**os.environ, "PYTHONPATH": str(program.parents[1])}
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, f"{check}: {(done.stdout + done.stderr)[-3000:]}"
