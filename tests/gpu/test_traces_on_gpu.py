"""Traces of steps on a GPU, whose timestamps are events on streams: a step's parts, retimed runs,
timelines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any, validate_task
from gradwire.harness.launch.launch import run_here
from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.tasks import retime, timeline
from gradwire.harness.timing.measure.breakdown import breakdown
from gradwire.harness.timing.measure.metrics import PARTS
from gradwire.harness.timing.trace.step import RankTrace, Work, spans

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TINY = ("size=tiny", "train.steps=6", "train.warmup_steps=2", "eval.every=3", "measure.vnmse_every=3")
TOLERANCE_S = 1e-4
"""An event is placed on the wall clock to some ten microseconds."""


def trained(directory: Path, *overrides: str) -> Path:
    run_here(validate(compose([*TINY, f"cluster.device={DEVICE}", *overrides])), directory)
    return directory


def check(own: RankTrace) -> None:
    """Gradients come one after another, work begins when they are there, and the parts make up the step."""
    assert list(own.ready) == sorted(own.ready) and own.ready[0] > 0
    for task in own.tasks:
        work = [operation for operation in task.operations if isinstance(operation, Work)]
        assert sum(operation.end - operation.start for operation in work) > 0
        assert {part.label for operation in work for part in operation.parts} > {"encode", "decode"}
        assert all(part.seconds >= -TOLERANCE_S for operation in work for part in operation.parts)
        assert work[0].start >= task.ready - TOLERANCE_S and task.end <= own.end + TOLERANCE_S
        starts = [operation.start for operation in work]
        assert all(a <= b + TOLERANCE_S for a, b in zip(starts, starts[1:], strict=False))
    found = breakdown(spans(own), 0.0, own.end)
    assert math.fsum(getattr(found, part) for part in PARTS) == pytest.approx(own.end, rel=1e-9, abs=0)


def test_virtual_workers_leave_a_trace_that_can_be_retimed(tmp_path: Path) -> None:
    network = ("network=simulated", "network.rate_mbit=1000", "cluster.workers=3")
    run = trained(tmp_path / "run", *network)
    rows = read_rows(run / "steps.jsonl")
    for (number, trace), row in zip(timed_steps(run), rows, strict=True):
        assert (number, len(trace)) == (row["step"], 3)
        assert max(own.end for own in trace.values()) == pytest.approx(row["step_time_s"], abs=1e-5)
        for own in trace.values():
            check(own)
    slower = validate_any(compose(["task=retime", f"run={run}", "network.rate_mbit=10"]))
    assert retime.run(slower, tmp_path / "slower") == 0
    after = load_run(tmp_path / "slower")
    assert [row["loss"] for row in after.steps] == [row["loss"] for row in rows]
    assert after.done.train_time_s > load_run(run).done.train_time_s


def test_a_timeline_of_a_step_on_a_gpu(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "network=simulated", "cluster.workers=3")
    assert timeline.run(validate_task(compose(["task=timeline", f"run={run}", "timeline.steps=1"]))) == 0
    for file in sorted((run / timeline.FOLDER).glob("*.json")):
        events = json.loads(file.read_text())["traceEvents"]
        assert {"encode", "decode"} <= {event["name"] for event in events}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_ranks_on_nccl_leave_a_trace_of_each_step(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", f"cluster.workers={torch.cuda.device_count()}")
    rows = read_rows(run / "steps.jsonl")
    for (_, trace), row in zip(timed_steps(run), rows, strict=True):
        assert max(own.end for own in trace.values()) == pytest.approx(row["step_time_s"], abs=1e-3)
        for own in trace.values():
            check(own)
