"""The passes before the first step, after which DDP's buckets stay as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

from gradwire.harness.parallel.passes import settling_passes
from gradwire.harness.parallel.pipeline import parallelism as pipeline


@pytest.mark.parametrize("static_graph", [False, True])
def test_buckets_settle_in_the_last_of_the_settling_passes(static_graph: bool) -> None:
    """The layers run in the reverse of the order in which they are declared, by which DDP begins."""
    model = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:

        class Backwards(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = model

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in reversed(self.layers):
                    x = layer(x)
                return x

        ddp = DistributedDataParallel(Backwards(), bucket_cap_mb=3e-4, static_graph=static_graph)
        passes: list[list[list[int]]] = []

        def ready(state: object, bucket: Any) -> Any:
            passes[-1].append([parameter.data_ptr() for parameter in bucket.parameters()])
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        ready.__annotations__.clear()  # DDP compares classes, and here they are strings
        ddp.register_comm_hook(None, ready)
        for _ in range(6):
            passes.append([])
            ddp(torch.ones(2, 8)).sum().backward()
        settled = next(at for at, one in enumerate(passes, start=1) if one == passes[-1])
        assert all(one == passes[-1] for one in passes[settled - 1 :]) and passes[0] != passes[-1]
        assert settled == settling_passes(ddp)
    finally:
        destroy_process_group()


def test_a_pipeline_makes_all_its_passes_before_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results do not depend on them, but the time of the first steps does: it would include what is done
    once, and the allocation of the optimizer's state, which needs gradients."""
    done: list[Any] = []
    monkeypatch.setattr(pipeline, "end_codecs", lambda world, codecs, step: done.append(("ended", step)))
    whole: Any = SimpleNamespace(
        _codecs={0: None, 1: None},
        _world=SimpleNamespace(run_step=lambda step, programs: done.append((step, sorted(programs)))),
        _hosted={0: SimpleNamespace(updater=SimpleNamespace(warm_up=lambda: done.append("updated")))},
        _gradients=lambda *given, measured: None,
    )
    pipeline.Pipeline._warm_up_passes(whole, {0: [], 1: []}, 2)
    assert done == [(-1, [0, 1]), ("ended", -1), (-2, [0, 1]), ("ended", -2), "updated"]
