"""What is asked of a script's own process group: whether it is alive, and how patient it is."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

AGREE_S = 120.0
"""Seconds that the ranks wait for one another to call `attach` and to connect, without a `timeout_s`."""


def check_group(group: Any, what: str) -> None:
    """Raises ValueError for a process group that the script has destroyed."""
    with contextlib.suppress(ValueError, KeyError, RuntimeError):  # which of them: by the version of PyTorch
        if dist.is_initialized() and dist.get_rank(group) >= 0:
            return
    raise ValueError(
        f"{what}: the model's process group has been destroyed; call init_process_group() and wrap the model "
        "anew"
    )


def group_timeout_s(group: dist.ProcessGroup, device: torch.device) -> float:
    """After how many seconds a collective of the process group's fails."""
    found = dist.distributed_c10d.default_pg_timeout
    with contextlib.suppress(RuntimeError):  # it has no backend for this device
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
        found = getattr(getattr(backend, "options", None), "_timeout", found)
    return found.total_seconds()
