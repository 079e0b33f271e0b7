"""Runs that do the same computation have the same `computation_id`."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gradwire.harness.record.identity import computation_id

RUN: dict[str, Any] = {
    "seed": 0,
    "model": {"name": "gpt2", "num_layers": 4, "hidden_size": 128, "weights": "random", "path": None},
    "dataset": {"name": "embedded", "kind": "documents", "sequence_length": 64, "image_size": None},
    "train": {"micro_batch": 8, "accumulation": 1, "optimizer": "adamw", "precision": "fp32", "lr": 1e-3}
    | {"steps": 60, "clip_norm": 1.0},
    "parallel": {"name": "ddp", "bucket_cap_mb": 25.0},
    "cluster": {"name": "virtual", "workers": 4, "device": "cpu"},
    "codec": {"name": "dynamiq", "bits": 5.0},
    "topology": {"name": "ring"},
    "overlap": {"enabled": True, "buckets": 2},
    "network": {"name": "none"},
    "eval": {"every": 25},
}


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The run with other values of some dotted keys."""
    found = copy.deepcopy(RUN)
    for key, value in changes:
        group, _, field = key.partition(".")
        if field:
            found[group][field] = value
        else:
            found[group] = value
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("codec", {"name": "bf16"}),
        ("codec.bits", 3.0),
        ("topology.name", "butterfly"),
        ("overlap.enabled", False),
        ("parallel.bucket_cap_mb", 0.5),
        ("network", {"name": "simulated", "rate_mbit": 100.0}),
        ("train.lr", 0.1),
        ("train.steps", 5),
        ("eval.every", 5),
        ("cluster.workers", 8),
        ("cluster.name", "local"),
    ],
)
def test_what_a_rank_computes_does_not_follow_from_what_is_sent(key: str, value: object) -> None:
    assert computation_id(changed((key, value))) == computation_id(RUN)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.num_layers", 5),
        ("model.path", "folder"),
        ("dataset.sequence_length", 128),
        ("train.micro_batch", 4),
        ("train.accumulation", 2),
        ("train.optimizer", "sgd"),
        ("train.precision", "bf16"),
        ("train.clip_norm", None),
        ("parallel", {"name": "pipeline", "stages": 2}),
        ("cluster.device", "cuda"),
    ],
)
def test_another_computation_has_another_id(key: str, value: object) -> None:
    found = computation_id(changed((key, value)))
    assert found != computation_id(RUN)
    assert len(found) == 12 and int(found, 16) >= 0


def test_shards_and_stages_follow_from_the_number_of_workers() -> None:
    four, eight = (
        changed(("parallel", {"name": "sharded", "weights": "exact"}), ("cluster.workers", count))
        for count in (4, 8)
    )
    assert computation_id(four) != computation_id(eight)
    coded = changed(("parallel", {"name": "sharded", "weights": "qwd"}))
    assert computation_id(coded) == computation_id(four)  # encoding weights is codec work
