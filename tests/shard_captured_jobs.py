"""FSDP2 training whose rounds are captured, or whose messages pass through host memory, on pool workers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from attach_jobs import data
from emulated_graph import RerunGraph, post_unless_capturing, run_unless_capturing
from shard_jobs import digest, sharded, step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import gradwire
from gradwire.codecs.native.call import Call
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.process import ProcessChannel
from gradwire.harness.library import calls, options

STEPS = 7

Trained = tuple[list[float], str, int, dict[str, Any] | None, int]
"""A rank's losses, a digest of its weights, the bytes it has sent, the record of captured rounds, and the
number of launches."""


def train(
    rank: int, size: int, given: dict[str, Any], captured: bool, model: dict[str, Any], resumed: bool = False
) -> Trained:
    """Trains with the arguments `given`; `resumed` after four steps from what they have left."""
    made = list[CapturedRounds]()

    def make(graphs: str, device: torch.device) -> CapturedRounds | None:
        if not captured or graphs == "never":
            return None
        made.append(CapturedRounds(RerunGraph, device, required=False))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessChannel, "_post", post_unless_capturing)
        patch.setattr(Call, "run", run_unless_capturing)
        patch.setattr(calls, "make_captured_rounds", make)
        return _trained(rank, size, given, model, made, resumed)


def _trained(
    rank: int,
    size: int,
    given: dict[str, Any],
    made_as: dict[str, Any],
    rounds: list[CapturedRounds],
    resumed: bool,
) -> Trained:
    kind = dict(made_as)
    if kind.pop("bf16", False):
        kind["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if kind.pop("replicas", False):
        kind["mesh"] = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(**kind)
    synchronizer = gradwire.shard_hooks(model, **given)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = list[float]()
    for number in range(STEPS):
        if resumed and number == 4:
            state = synchronizer.state_dict()
            synchronizer.load_state_dict(state)
        losses.append(float(step(model, optimizer, rank, number)))
    with torch.no_grad():
        model(data(0, 0)[0])  # gathers the weights
    held, report = digest(model.parameters()), synchronizer.captured
    synchronizer.detach()
    launches = sum(each.launches for each in rounds)
    assert not any(list(each) for each in rounds), "detach() discards captures"
    return losses, held, synchronizer.bytes_sent, None if report is None else asdict(report), launches


def shared(rank: int, size: int, given: dict[str, Any]) -> Trained:
    """`train` step by step, with messages through host memory; the CPU stands for the GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_check_shared", lambda device, group: None)
        return train(rank, size, given | {"share_device": True}, True, {})
