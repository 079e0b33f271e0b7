"""Which implementation of the codecs' kernels a run uses: `kernels=auto` replaced by what it stands for."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradwire.codecs.native.choice import choose_kernels, using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.parallel.synchronize import refused_graphs
from gradwire.harness.trainer.settings import KernelsConfig, RunConfig

REMEDY = {
    "cpu": "install a C++ compiler, then make install",
    "cuda": "put nvcc into PATH, then make install GRADWIRE_CUDA=ON",
}
"""How to get the compiled kernels of a device."""


def resolve_kernels(kernels: KernelsConfig, device: str, *, timed_task: str | None) -> KernelsConfig:
    """The implementation that `kernels` stands for on the resolved `cluster.device`.

    Raises ValueError in one line for one that cannot run there, and, where the figures of the task are times
    (`timed_task`), for `auto` without compiled kernels.
    """
    chosen = choose_kernels(kernels.name, device)
    if timed_task is not None and kernels.name == "auto" and chosen == "default":
        raise ValueError(
            f"kernels=auto: there are no compiled kernels for cluster.device={device}, and "
            f"task={timed_task} measures time; {REMEDY[device]}, or ask for the slow definition by "
            "kernels=default"
        )
    return replace(kernels, name=chosen)


def check_graphs(run: RunConfig) -> None:
    """Raises ValueError, in one line, where `kernels.graphs=always` is asked of a run without captures."""
    if run.kernels.graphs != "always":
        return
    reason = _refused_graphs(run)
    if reason is not None:
        raise ValueError(f"kernels.graphs=always: {reason}; use kernels.graphs=auto")


def _refused_graphs(run: RunConfig) -> str | None:
    if run.cluster.name == "virtual":
        return "cluster=virtual times every hop by itself"
    if run.parallel.name != "ddp":
        return f"parallel={run.parallel.name} synchronizes by other rounds than parallel=ddp"
    device = torch.device(run.cluster.device)
    if device.type == "cuda" and run.measure.spans:
        return "measure.spans=true times every hop, and what happens within a graph nobody sees"
    with using_kernels(run.kernels.name):
        return refused_graphs(make_codec(**run.codec), device, run.measure.check_hashes)
