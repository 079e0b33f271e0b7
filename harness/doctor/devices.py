"""Devices for computation: cores, memory, GPUs, and the backends between workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.harness.doctor.findings import Environment, Finding, FindingsSection, Run, found_or_missing
from gradwire.harness.doctor.tools import output_of
from gradwire.harness.files.writing import size_text

SCARCE = 4 * 2**30
"""Bytes that four workers of `size=tiny` need, most of them for libraries."""

DRIVER = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]


def devices(run: Run = output_of) -> FindingsSection:
    """Cores, threads, memory, GPUs and backends of this machine."""
    return FindingsSection("Devices", [cores(), threads(), memory(), *gpus(run), *backends()])


def cores(
    count: int | None = None, usable: int | None = None, system: Path = Path("/sys/fs/cgroup")
) -> Finding:
    """The number of cores, and how many of them this process may use: its affinity, and its share if
    limited.
    """
    count = count or os.cpu_count() or 1
    if usable is None:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    share = _share(system / "cpu.max")
    limited = f", limited to the time of {share:.3g}" if share is not None and share < usable else ""
    return Finding("CPU cores", f"{count}, {usable} usable{limited}")


def threads(environment: Environment = os.environ) -> Finding:
    """The number of threads that torch uses; runs use one per worker."""
    setting = environment.get("OMP_NUM_THREADS", "not set")
    return Finding(
        "threads", f"1 per worker in runs; torch here: {torch.get_num_threads()}, OMP_NUM_THREADS {setting}"
    )


def memory(system: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup/memory.max")) -> Finding:
    """The memory of the machine, or of this process's control group if that is limited."""
    known = dict(line.split(":", 1) for line in _text(system).splitlines() if ":" in line)
    sizes = {key: 1024 * int(value.split()[0]) for key, value in known.items() if value.split()}
    if "MemTotal" not in sizes:
        return Finding("memory", "unknown")
    limit, total = _text(group).strip(), sizes["MemTotal"]
    if limit.isdigit():
        total = min(total, int(limit))
    available = min(total, sizes.get("MemAvailable", total))
    value = f"{size_text(total)}, {size_text(available)} available"
    if available >= SCARCE:
        return Finding("memory", value)
    return Finding("memory", value, "missing", "four workers at a time", "cluster=virtual, or fewer workers")


def visible_gpus() -> list[str]:
    """Name and memory of each GPU that torch can use."""
    known = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{gpu.name}, {size_text(gpu.total_memory)}" for gpu in known]


def gpus(
    run: Run = output_of,
    visible: Callable[[], list[str]] = visible_gpus,
    built_for: str | None = torch.version.cuda,
) -> list[Finding]:
    """The GPUs, the CUDA that torch was built for, and the driver."""
    driver = run(DRIVER)
    remedy = "a GPU and its driver"
    if driver is not None and built_for is None:
        remedy = "a torch with CUDA: there is a driver"
    without = "cluster.device=cuda (size=gpu and size=paper are slow without)"
    return [
        found_or_missing("GPUs", "; ".join(visible()) or None, without, remedy),
        found_or_missing("CUDA in torch", built_for, "computing on GPUs", "a torch with CUDA: pytorch.org"),
        found_or_missing("driver", driver and driver.splitlines()[0], "computing on GPUs", "NVIDIA's driver"),
    ]


def backends(
    gloo: Callable[[], bool] = dist.is_gloo_available, nccl: Callable[[], bool] = dist.is_nccl_available
) -> list[Finding]:
    """Findings on the backends between workers: gloo for CPUs, nccl for GPUs."""
    install = "a torch that has it: pytorch.org"
    return [
        found_or_missing("gloo", "available" if gloo() else None, "every run", install, needed=True),
        found_or_missing(
            "nccl", "available" if nccl() else None, "cluster.backend=nccl, for several GPUs", install
        ),
    ]


def _share(limit: Path) -> float | None:
    """The number of cores that a control group may use; None without a limit."""
    quota, _, period = _text(limit).strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
