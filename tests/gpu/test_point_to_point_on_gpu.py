"""Messages from one rank to another on GPUs: virtual ranks on one, and real ones over NCCL."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from point_to_point_jobs import RING, hand_on, over_nccl

from gradwire.harness.comm.world.virtual import VirtualWorld

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def virtually(size: int, device: torch.device) -> list[tuple[list[torch.Tensor], int]]:
    """The tensors of each rank, on the CPU, and the bytes that it sent."""
    world = VirtualWorld(size, RING, device, debug=True)
    found = world.run(dict.fromkeys(range(size), partial(hand_on, device=device)))
    sent = [world.traffic[rank].by_phase["activations"] for rank in range(size)]
    return [([tensor.cpu() for tensor in found[rank]], sent[rank]) for rank in range(size)]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_virtual_ranks_on_a_gpu_hand_on_what_those_on_the_cpu_do(size: int) -> None:
    on_gpu, on_cpu = virtually(size, torch.device("cuda")), virtually(size, torch.device("cpu"))
    for (found, sent), (expected, count) in zip(on_gpu, on_cpu, strict=True):
        assert same(found, expected) and sent == count


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_ranks_on_nccl_hand_on_what_virtual_ones_do(tmp_path: Path) -> None:
    size = torch.cuda.device_count()
    torch.multiprocessing.spawn(over_nccl, (size, str(tmp_path)), nprocs=size)  # type: ignore[no-untyped-call]
    for rank, (expected, sent) in enumerate(virtually(size, torch.device("cpu"))):
        *found, count = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert same(found, expected) and int(count) == sent
