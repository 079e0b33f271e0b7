"""On a GPU: the same bytes as on the CPU, training in the virtual cluster, NCCL between GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.launch import run_here
from gradwire.harness.parallel.synchronize import synchronization

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TINY = ("size=tiny", "train.steps=6", "train.warmup_steps=2", "eval.every=3", "measure.check_hashes=true")


def synchronize(device: torch.device, codec: str, topology: str, numel: int, size: int) -> list[torch.Tensor]:
    """Every rank's mean, on the CPU."""
    world = VirtualWorld(size, Fabric(lambda n: make_schedule(topology, n)), device, debug=True)
    layout = Layout.flat(numel, device=device)
    collectives = {}
    for rank in range(size):
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
        this_round = Round(3, layout, rank, size, 7)
        collectives[rank] = synchronization(make_codec(codec), x.to(device), this_round, check_hashes=True)
    return [mean.cpu() for mean in world.run(collectives).values()]


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
@pytest.mark.parametrize("codec", sorted({*codec_classes()} - {"backend", "powersgd"}))
@pytest.mark.parametrize("numel", [1, 255, 100_000])
def test_a_gpu_gives_the_bytes_of_the_cpu(codec: str, topology: str, numel: int) -> None:
    on_cpu = synchronize(torch.device("cpu"), codec, topology, numel, 3)
    on_gpu = synchronize(torch.device("cuda"), codec, topology, numel, 3)
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_low_rank_factors_on_a_gpu_are_those_of_the_cpu_to_rounding() -> None:
    """Products of matrices are summed in another order there."""
    layout = Layout(("w", "b"), ((60, 80), (40,)), (0, 4800), 4840)
    means = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        world = VirtualWorld(3, Fabric(lambda n: make_schedule("ring", n)), device, debug=True)
        collectives = {}
        for rank in range(3):
            x = torch.randn(4840, generator=torch.Generator().manual_seed(rank)).to(device)
            this_round = Round(3, replace(layout, device=device), rank, 3, 7)
            collectives[rank] = synchronization(make_codec("powersgd"), x, this_round, check_hashes=True)
        means.append(world.run(collectives)[0].cpu())
    torch.testing.assert_close(means[0], means[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", ["gpt2", "llama1b", "bert_large"])
def test_training_in_the_virtual_cluster(model: str, tmp_path: Path) -> None:
    overrides = (f"model={model}", "cluster=virtual", "cluster.workers=3", "cluster.device=cuda")
    run_here(validate(compose([*TINY, *overrides])), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["machine"]["gpus"]
    assert summary["compute_s"] > 0
    assert 4.9 < summary["wire_bits_per_coordinate"] <= 5


@pytest.mark.parametrize("given", [(), ("codec.base=plain", "codec.rounding=stochastic")])
def test_training_by_blocks(given: tuple[str, ...], tmp_path: Path) -> None:
    """AQGB's kernels and refinements, in steps whose updates come with the next forward pass."""
    overrides = ("codec=aqgb", "parallel=blocks", "topology=broadcast", "train.steps=8", *given)
    simulated = ("cluster=virtual", "cluster.workers=3", "network=simulated", "network.rate_mbit=50")
    run_here(validate(compose([*TINY, *overrides, *simulated, "cluster.device=cuda"])), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["machine"]["gpus"] and summary["wire_bits_per_coordinate"] < 32


def test_training_over_nccl(tmp_path: Path) -> None:
    """One rank per GPU; with one GPU nothing is sent, but the streams and events are used."""
    size = torch.cuda.device_count()
    run_here(validate(compose([*TINY, f"cluster.workers={size}"])), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["workers"] == size
    assert summary["compute_s"] > 0
