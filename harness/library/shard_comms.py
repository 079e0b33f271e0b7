"""The all-gather and the reduce-scatter that FSDP2 calls for one module instead of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from gradwire.harness.library.failures import SynchronizationError
from gradwire.harness.library.shard_modules import ShardedModule
from gradwire.harness.library.shard_step import ShardStep


class Hook:
    """The common base of both. FSDP2 expects the result when the call returns, so the rank waits."""

    def __init__(self, step: ShardStep, module: ShardedModule) -> None:
        self._step, self._module = step, module

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model with a codec cannot be pickled or copied; save its state_dict(), or first call detach() "
            "on what gradwire.shard_hooks() returned"
        )


class WeightGather(Hook, AllGather):
    """Gathers a module's weights as `parallel.weights` specifies."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        self._step.guarded(partial(self._step.gather, self._module, group, output_tensor, input_tensor))


class ReplicaAverage(dist.ProcessGroup):
    """Replaces `group`, over which FSDP2 sums a module's gradients: averages them with a codec."""

    def __init__(self, step: ShardStep, module: ShardedModule, group: dist.ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self.instead_of, self._step, self._module = group, step, module

    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Averages the only tensor in place. FSDP2 expects the result when the call returns, so there is
        nothing left to wait for."""
        (x,) = tensors
        work = partial(self._step.average, self._module, x, options.reduceOp)
        try:
            self._step.guarded(work, self._step.explain_replicas)
        except SynchronizationError:  # PyTorch logs of which group it is, and fails if it does not know it
            world: Any = distributed_c10d._world
            for known in (world.pg_map, world.pg_group_ranks):
                known.setdefault(self, known[self.instead_of])
            raise

    def forget(self) -> None:
        """Removes it from PyTorch's registry of process groups."""
        world: Any = distributed_c10d._world
        for known in (world.pg_map, world.pg_group_ranks):
            known.pop(self, None)


class GradientScatter(Hook, ReduceScatter):
    """Scatters a module's gradients with the codec."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._step.guarded(partial(self._step.scatter, self._module, output_tensor, input_tensor, op))
