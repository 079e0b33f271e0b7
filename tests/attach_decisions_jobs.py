"""Jobs on pool workers about the decisions of attached codecs: made by the clock, recorded, followed."""

from __future__ import annotations

from typing import Any

import attach_jobs as jobs
import torch.distributed as dist
from clock_codec import ClockDriven

import gradwire

STEPS = 5

Outcome = tuple[bytes, dict[str, Any]]
"""A model's weights and its codec's last decision."""


def by_the_clock(rank: int, size: int, path: str, overlap: bool) -> list[Outcome]:
    """Outcomes of a run that decides and records, of one that follows it, and of another run that decides."""
    found = []
    for number, options in enumerate([{}, {"decisions": path}, {}]):
        model = jobs.wrapped()
        with gradwire.attach(model, ClockDriven.name, overlap=overlap, **options) as synchronizer:
            if number == 0:
                synchronizer.record_decisions(path)
            for step in range(STEPS):
                jobs.run_steps(model, range(step, step + 1), rank)
                if step == 2:
                    synchronizer.skip_step()
            decision = dict(synchronizer.decision)
        dist.barrier()  # rank 0 has written the last decision
        found.append((jobs.weights(model), decision))
    return found


def recorded_again(rank: int, size: int, whole: str, resumed: str, rolled_back: str) -> None:
    """Records the same run three times: undisturbed, resumed after two steps, and taken back to there."""
    for path in (whole, resumed, rolled_back):
        model = jobs.wrapped()
        with gradwire.attach(model, "mxfp8", gamma=0.5) as synchronizer:
            synchronizer.record_decisions(path)
            jobs.run_steps(model, range(2), rank)
            state, weights = synchronizer.state_dict(), model.module.state_dict()
            if path == resumed:
                synchronizer.detach()
                model = jobs.wrapped()
                model.module.load_state_dict(weights)
                synchronizer = gradwire.attach(model, "mxfp8", gamma=0.5)
                synchronizer.load_state_dict(state)
                synchronizer.record_decisions(path)
            elif path == rolled_back:
                before = {name: value.clone() for name, value in weights.items()}
                jobs.run_steps(model, range(7, 9), rank)
                model.module.load_state_dict(before)
                synchronizer.load_state_dict(state)
            jobs.run_steps(model, range(2, STEPS), rank)
            synchronizer.detach()


def refusals(rank: int, size: int, folder: str, foreign: str) -> list[str]:
    """The errors for decisions that this run cannot follow, and for files that cannot record any."""
    path, own, missing = f"{folder}/decisions.jsonl", {"codec": "mxfp8", "timeout_s": 20}, f"{folder}/none"
    model = jobs.wrapped()
    with gradwire.attach(model, **own) as synchronizer:
        synchronizer.record_decisions(path)
        jobs.run_steps(model, range(2), rank)
        found = [
            jobs.said(synchronizer.record_decisions, missing),
            jobs.said(synchronizer.load_state_dict, _later(synchronizer.state_dict())),
        ]
    dist.barrier()
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"codec": "mxfp4"},
        {"topology": "butterfly"},
        {"decisions": foreign},
        {"decisions": missing},
        {"codec": "bf16"},
        {"decisions": 3},
        {} if rank else {"decisions": None},
    ]
    found += [jobs.said(gradwire.attach, model, **{**own, "decisions": path, **other}) for other in others]
    other = jobs.wrapped(bucket_cap_mb=25)
    found.append(jobs.said(gradwire.attach, other, **own, decisions=path))
    with gradwire.attach(model, "bf16", timeout_s=20) as synchronizer:
        found.append(jobs.said(synchronizer.record_decisions, missing))
    with gradwire.attach(model, **own, overlap=False, segments=2, decisions=path) as synchronizer:
        found.append(jobs.said(synchronizer.record_decisions, path))
        found.append(jobs.said(jobs.run_steps, model, range(4), rank))
    return found


def _later(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"step": state["step"] + 1}
