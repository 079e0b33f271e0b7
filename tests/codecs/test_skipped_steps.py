"""A skipped step changes no codec: its state is what it was before, in all buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from codec_rounds import MODEL, TAIL, Cluster, as_bytes, gradients
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.exact import BF16
from gradwire.codecs.interface import Codec
from gradwire.codecs.mxfp import MXFP
from gradwire.codecs.step_memory import StepMemory

CASES: list[tuple[str, dict[str, Any]]] = [
    *[(name, {"ef": True}) for name in ("bf16", "thc", "onebit", "topk", "randomk")],
    *[(name, {}) for name in ("mxfp8", "omnireduce", "powersgd")],
    ("mxfp4", {"ef": True, "gamma": 0.5, "epsilon": 0.0}),
    ("omnireduce", {"ef": True, "bits": 4.0, "block": 32}),
    ("powersgd", {"exclude": ["body.*"]}),
    ("mxfp8", {"ef": True, "exclude": ["head.*", "tail"]}),
]
"""Codecs with state, and with wrappers around them."""


def copies(codecs: Sequence[Codec]) -> list[dict[str, Tensor]]:
    return [{key: value.clone() for key, value in codec.state_dict().items()} for codec in codecs]


def assert_same(first: Sequence[dict[str, Tensor]], second: Sequence[dict[str, Tensor]]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(as_bytes(value), as_bytes(other[key])) for key, value in one.items())


def step(cluster: Cluster, number: int, *, skip: bool = False, factor: float = 1.0) -> list[Tensor]:
    """Two buckets; gradients of step `number`, in the first one times `factor`."""
    size = len(cluster.codecs)
    xs = [x * factor for x in gradients(MODEL, size, number)]
    return cluster.step((MODEL, xs), (TAIL, gradients(TAIL, size, number)), skip=skip)


@pytest.mark.parametrize(("codec", "options"), CASES, ids=str)
def test_a_skipped_step_leaves_no_trace(codec: str, options: dict[str, Any]) -> None:
    """Wherever the skipped step comes, even first, the other steps' means are those of a run without it.

    The bucket whose mean is finite has been synchronized like any other.
    """
    skipping, plain = Cluster(3, "ring", codec, **options), Cluster(3, "ring", codec, **options)
    for number in range(4):
        for factor in (float("inf"), 1e25) if number % 2 else (1e3,):
            before, steps = copies(skipping.codecs), skipping.steps
            step(skipping, 10 + number, skip=True, factor=factor)
            assert_same(before, copies(skipping.codecs))
            skipping.steps = steps
        for mean, expected in zip(step(skipping, number), step(plain, number), strict=True):
            assert torch.equal(as_bytes(mean), as_bytes(expected))
        assert_same(copies(skipping.codecs), copies(plain.codecs))
        assert copies(plain.codecs)[0]


def test_a_step_that_counts_does_change_the_state() -> None:
    """Without this the test above would prove nothing."""
    for codec, options in CASES:
        cluster = Cluster(3, "ring", codec, **options)
        step(cluster, 0)
        before = copies(cluster.codecs)
        step(cluster, 1)
        after = copies(cluster.codecs)
        assert any(not torch.equal(before[0][key], value) for key, value in after[0].items()), codec


def test_what_is_logged_of_a_skipped_step() -> None:
    cluster = Cluster(2, "ring", "mxfp8")
    step(cluster, 0)
    buckets = [(TAIL, gradients(TAIL, 2, 1))]
    run_collectives(cluster.world, {r: cluster._collectives(r, buckets) for r in cluster.world.ranks})
    logs = [codec.skip_step(1) for codec in cluster.codecs]
    assert logs[0] == {"mu": 2.0, "overflow": 0.0}
    assert MXFP().skip_step(0) == {}

    class Told(BF16):
        def end_step(self, step: int) -> dict[str, float]:
            return {"step": float(step)}

    assert Told().skip_step(3) == {"step": 3.0}, "without memory there is no difference"


def test_memory_of_a_step() -> None:
    memory = StepMemory[int]()
    memory["a"] = 1
    memory.end_step()
    memory["a"], memory["b"] = 2, 5
    memory["a"] = 3
    memory.skip_step()
    assert dict(memory) == {"a": 1}
    memory["a"] = 4
    memory.load({"c": 6})
    memory.skip_step()
    assert dict(memory) == {"c": 6}
