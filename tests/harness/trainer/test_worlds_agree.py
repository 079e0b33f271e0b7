"""Real and virtual runs of one configuration have the same losses, gradients, weights and bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import Workers
from recorded import loads
from safetensors.numpy import load_file
from torch._C._distributed_c10d import HashStore
from training_jobs import batch_normed, tiny_run, train_all_virtually, train_rank, train_rank_batch_normed

from gradwire.harness.record.runs import load_run
from gradwire.harness.trainer.loop import Trainer
from gradwire.harness.trainer.parts import build
from gradwire.harness.trainer.steplog import LEVELS

SAME = (
    *("step", "loss", "lr", "grad_norm", "skipped", "measured", "vnmse", "bytes_sent", "perplexity"),
    *("accuracy", "matthews", "wire_bits_by_level.local", "wire_bits_by_level.node"),
    *("codec/mu", "codec/overflow"),
)


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    found = [loads(line) for line in (directory / name).read_text().splitlines()]
    return [{key: row[key] for key in SAME if key in row} for row in found]


def assert_runs_agree(first: Path, second: Path) -> None:
    for name in ("steps.jsonl", "evals.jsonl"):
        assert rows(first, name) == rows(second, name)
    assert len(rows(first, "steps.jsonl")) == 4
    weights = [load_file(folder / "checkpoint" / "model.safetensors") for folder in (first, second)]
    assert weights[0].keys() == weights[1].keys()
    for key, value in weights[0].items():
        assert value.tobytes() == weights[1][key].tobytes(), key
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (first, second)]
    for key in ("final_metric", "bytes_sent_per_rank", "bytes_by_phase", "layout_hash", "vnmse_mean"):
        assert summaries[0][key] == summaries[1][key], key
    assert summaries[0]["wire_bits_by_level"] == summaries[1]["wire_bits_by_level"]
    assert [summary["clock"] for summary in summaries] == ["wall", "simulated"]


FIRST_BUCKET_EXCLUDED = ("codec.exclude=[transformer.ln_f*,*.h.0.*]",)
"""The setting that excludes all of the first bucket, and a part of the second one."""

NODES = "cluster.ranks_per_node=2"

CASES = [
    *[(n, topology, "dynamiq", ()) for n in (1, 2, 3, 4, 5) for topology in ("ring", "butterfly")],
    (3, "ring", "dynamiq", ("overlap.enabled=false",)),
    (4, "butterfly", "dynamiq", ("overlap.enabled=false", "train.accumulation=2", NODES)),
    (4, "ring", "dynamiq", ("overlap.buckets=3", "codec.rounding=independent", "model=llama1b")),
    (3, "butterfly", "bf16", ("model=bert_large",)),
    (2, "ring", "fp32", ("parallel.static_graph=true",)),
    (2, "ring", "dynamiq", ("parallel.gradient_as_bucket_view=true", "network=paced")),
    (3, "ring", "mxfp8", FIRST_BUCKET_EXCLUDED),
    (3, "butterfly", "powersgd", ()),
    (3, "broadcast", "omnireduce", ("codec.ef=true",)),
    (3, "ring", "dynamiq", ("model=llama1b_mmlu",)),
    (3, "butterfly", "lattice", ("overlap.buckets=3", "codec.slot=16")),
    (2, "butterfly", "dynamiq", ("model=tinybert_glue", "train.accumulation=2")),
]


def test_the_runs_have_several_buckets(tmp_path: Path) -> None:
    """Several buckets are needed for the tests here to have more than one in flight."""
    config = tiny_run("cluster=virtual", "cluster.workers=2")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parts = build(config, torch.device("cpu"))
        Trainer(config, parts, tmp_path).start()
        assert len(parts.parallelism.layout(0)) >= 3
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("size", "topology", "codec", "more"), CASES, ids=lambda value: str(value))
def test_real_equals_virtual(
    size: int, topology: str, codec: str, more: tuple[str, ...], tmp_path: Path, workers: Workers
) -> None:
    overrides = (f"codec={codec}", f"topology={topology}", f"cluster.workers={size}", *more)
    train_all_virtually(tiny_run(*overrides, "cluster=virtual"), str(tmp_path / "virtual"))
    workers(size)(train_rank, tiny_run(*overrides), str(tmp_path / "real"))
    assert_runs_agree(tmp_path / "real", tmp_path / "virtual")
    assert_levels(tmp_path / "real", NODES in more)


def assert_levels(run: Path, several_nodes: bool) -> None:
    """Bits inside and between nodes add up, and are given only where there are several nodes. Every rank of a
    butterfly has one partner in its node and one in the other, to which it sends twice as much, or half."""
    record = load_run(run)
    told = [[row[level] for level in LEVELS if level in row] for row in record.steps]
    told.append(list((record.done.wire_bits_by_level or {}).values()))
    totals = [
        *(row["wire_bits_per_coordinate"] for row in record.steps),
        record.done.wire_bits_per_coordinate,
    ]
    for levels, total in zip(told, totals, strict=True):
        assert len(levels) == (2 if several_nodes else 0)
        if several_nodes:
            assert sum(levels) == pytest.approx(total)
            assert max(levels) == pytest.approx(2 * min(levels), rel=0.1)


def test_buffers_that_training_changes_are_those_of_rank_0(tmp_path: Path, workers: Workers) -> None:
    """BatchNorm's statistics, sent before evaluations and checkpoints; a stopped run keeps them."""
    more = ("cluster.workers=3", "eval.every=2", "train.checkpoint_every=3")
    virtual = tiny_run(*more, "cluster=virtual")
    with batch_normed():
        train_all_virtually(virtual, str(tmp_path / "virtual"))
        train_all_virtually(virtual, str(tmp_path / "stopped"), stop_after=2)
        train_all_virtually(virtual, str(tmp_path / "stopped"))
    workers(3)(train_rank_batch_normed, tiny_run(*more), str(tmp_path / "real"))
    assert_runs_agree(tmp_path / "real", tmp_path / "virtual")
    names = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    kept = {
        name: load_file(tmp_path / name / "checkpoint" / "model.safetensors")
        for name in ("virtual", "stopped")
    }
    for name in (f"transformer.ln_f.{each}" for each in names):
        assert kept["virtual"][name].tobytes() == kept["stopped"][name].tobytes()
    assert kept["virtual"]["transformer.ln_f.norm.num_batches_tracked"] == 4
    statistics = sum(kept["virtual"][f"transformer.ln_f.{each}"].nbytes for each in names)
    sent = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("real", "virtual")]
    # Before two evaluations and a checkpoint, twice around the ring.
    assert [each["bytes_by_phase"]["control"] for each in sent] == [3 * 2 * (3 - 1) * statistics] * 2


def test_what_a_codec_remembers_is_the_same_in_both_worlds(tmp_path: Path, workers: Workers) -> None:
    """MXFP's μ, which follows what all ranks counted a step before; the warm-up left nothing of it."""
    overrides = ("codec=mxfp8", "codec.gamma=0.5", "topology=butterfly", "cluster.workers=3")
    train_all_virtually(tiny_run(*overrides, "cluster=virtual"), str(tmp_path / "virtual"))
    workers(3)(train_rank, tiny_run(*overrides), str(tmp_path / "real"))
    assert_runs_agree(tmp_path / "real", tmp_path / "virtual")
    steps = rows(tmp_path / "real", "steps.jsonl")
    assert [row["codec/mu"] for row in steps[:3]] == [3.0, 3.0, 1.5]
    assert [row["codec/overflow"] for row in steps[:2]] == [0.0, 0.0]
    assert steps[3]["codec/mu"] == (3.0 if steps[2]["codec/overflow"] > 1e-5 else 1.0)


def test_overlap_does_not_change_a_bit(tmp_path: Path) -> None:
    """Another number of buckets in flight, or none: the same run."""
    for name, more in {"on": (), "off": ("overlap.enabled=false",), "one": ("overlap.buckets=1",)}.items():
        train_all_virtually(tiny_run("cluster=virtual", "cluster.workers=3", *more), str(tmp_path / name))
    for other in ("off", "one"):
        assert rows(tmp_path / "on", "steps.jsonl") == rows(tmp_path / other, "steps.jsonl")


def test_native_runs_and_its_bytes_are_not_claimed(tmp_path: Path, workers: Workers) -> None:
    workers(2)(train_rank, tiny_run("codec=backend", "cluster.workers=2"), str(tmp_path / "backend"))
    summary = json.loads((tmp_path / "backend" / "summary.json").read_text())
    assert summary["wire_bits_per_coordinate"] is None
    assert summary["vnmse_mean"] < 1e-12


def test_wire_bits_stay_within_the_budget_in_every_step(tmp_path: Path) -> None:
    """DynamiQ's budget counts everything on the wire; enough coordinates for it to bind over the model."""
    overrides = ("model.hidden_size=128", "model.intermediate_size=512", "parallel.bucket_cap_mb=25")
    for bits in (3, 5, 6):
        config = tiny_run("cluster=virtual", "cluster.workers=3", f"codec.bits={bits}", *overrides)
        train_all_virtually(config, str(tmp_path / str(bits)))
        for line in (tmp_path / str(bits) / "steps.jsonl").read_text().splitlines():
            assert 0.98 * bits < json.loads(line)["wire_bits_per_coordinate"] <= bits
