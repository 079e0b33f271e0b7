"""Which implementation of the codecs' kernels a run uses: `kernels=auto` replaced by what it stands for."""

from __future__ import annotations

from omegaconf import DictConfig

from gradwire.codecs.native.choice import choose_kernels

REMEDY = {
    "cpu": "install a C++ compiler, then make install",
    "cuda": "put nvcc into PATH, then make install GRADWIRE_CUDA=ON",
}
"""How to get the compiled kernels of a device."""


def resolve_kernels(config: DictConfig, *, timed: bool) -> None:
    """Replace `kernels.name`, in place, by the implementation for the resolved `cluster.device`.

    Raises ValueError in one line for one that cannot run there, and, where the task's figures are times
    (`timed`), for `auto` without compiled kernels.
    """
    device = str(config.cluster.device)
    chosen = choose_kernels(config.kernels.name, device)
    if timed and config.kernels.name == "auto" and chosen == "default":
        raise ValueError(
            f"kernels=auto: there are no compiled kernels for cluster.device={device}, and "
            f"task={config.task.name} measures time; {REMEDY[device]}, or ask for the slow definition by "
            "kernels=default"
        )
    config.kernels.name = chosen
