"""Which implementation of the codecs' kernels a run uses: `kernels=auto` replaced by what it stands for."""

from __future__ import annotations

from gradwire.codecs.native.choice import choose_kernels
from gradwire.harness.trainer.settings import KernelsConfig

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
    return KernelsConfig(chosen)
