"""A step's loss is the mean over all tokens that count in it, however workers and micro-batches cut it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pool import Workers
from training_jobs import tiny_run, train_all_virtually, train_rank

from gradwire.harness.record.runs import load_run
from gradwire.harness.trainer.batches import loss_weights

CUTS = {
    "accumulated": ("train.micro_batch=1", "train.accumulation=8"),
    "workers": ("train.micro_batch=1", "cluster.workers=8"),
    "pipeline": (
        *("parallel=pipeline", "parallel.stages=2", "cluster.workers=8"),
        *("train.micro_batch=1", "train.accumulation=2"),
    ),
    "blocks": (
        *("parallel=blocks", "parallel.num_blocks=2", "parallel.bucket_cap_mb=25"),
        *("train.accumulation=2", "cluster.workers=2"),
    ),
    "sharded": (
        *("parallel=sharded", "train.optimizer=adamw", "train.momentum=0.9"),
        *("train.accumulation=2", "cluster.workers=2"),
    ),
    "local_sgd": ("parallel=local_sgd:every_2", "train.accumulation=2", "cluster.workers=2"),
}
"""Ways to cut the same 8 sequences of a step; micro-batches have 2 unless another number is given."""

SAME = {"sharded": 1, "local_sgd": 1}
"""The number of steps that are the same where not all three are: the first of another optimizer, and the
first of ranks that train separately."""

SETTINGS = (
    *("model=llama1b", "model.num_layers=2", "model.dropout=0", "codec=fp32", "train.warmup_steps=0"),
    *("train.optimizer=sgd", "train.momentum=0", "train.weight_decay=0", "train.lr=0.5"),
    *("train.clip_norm=null", "train.steps=3", "train.log_every=1", "eval.every=3", "eval.max_sequences=4"),
    *("measure.vnmse_every=0", "measure.trace=false", "measure.check_hashes=false"),
)
KEYS = ("loss", "grad_norm", "bytes_sent")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides that choose chats whose answers have one word or many, so that in some rows few tokens count
    and in others most."""
    folder, draw = tmp_path_factory.mktemp("chats"), random.Random(0)
    words = ["river", "stone", "cloud", "light", "paper", "green", "quiet", "north", "seven", "garden"]

    def said(role: str, count: int) -> dict[str, str]:
        return {"role": role, "content": " ".join(draw.choices(words, k=count))}

    asked, answered = (30, 4), (1, 30)
    lines = [
        json.dumps({"messages": [said("user", asked[n % 2]), said("assistant", answered[n % 2])]})
        for n in range(300)
    ]
    (folder / "chats.jsonl").write_text("\n".join(lines))
    return ("dataset=ultrachat", f"dataset.path={folder}", "dataset.loss_on=assistant")


def rows(run: Path, *keys: str) -> list[list[Any]]:
    return [[row[key] for key in keys] for row in load_run(run).steps]


def virtually(directory: Path, *overrides: str) -> list[list[Any]]:
    config = tiny_run("cluster=virtual", "cluster.workers=1", *SETTINGS, *overrides)
    train_all_virtually(config, str(directory))
    return rows(directory, *KEYS)


@pytest.fixture(scope="module")
def whole(chats: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The rows of a run whose steps are one micro-batch each."""
    return virtually(tmp_path_factory.mktemp("whole") / "run", *chats, "train.micro_batch=8")


@pytest.mark.parametrize("cut", CUTS)
def test_steps_are_those_of_one_micro_batch(
    cut: str, chats: tuple[str, ...], whole: list[list[Any]], tmp_path: Path
) -> None:
    found = virtually(tmp_path / "run", *chats, *CUTS[cut])
    same = slice(SAME.get(cut, 3))
    for (loss, norm, _), (expected_loss, expected_norm, _) in zip(found[same], whole[same], strict=True):
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        if cut != "local_sgd":  # whose norm is the mean of the ranks' own
            assert norm == pytest.approx(expected_norm, rel=1e-5)


def test_weights_are_the_same_in_every_world_and_after_a_stop_and_are_not_sent(
    chats: tuple[str, ...], whole: list[list[Any]], tmp_path: Path, workers: Workers
) -> None:
    cut = ("cluster.workers=2", "train.accumulation=2", "train.checkpoint_every=1")
    virtual = tiny_run(*SETTINGS, *chats, *cut, "cluster=virtual")
    train_all_virtually(virtual, str(tmp_path / "virtual"), stop_after=2)
    train_all_virtually(virtual, str(tmp_path / "virtual"))
    workers(2)(train_rank, tiny_run(*SETTINGS, *chats, *cut), str(tmp_path / "real"))
    found = rows(tmp_path / "real", *KEYS)
    assert found == rows(tmp_path / "virtual", *KEYS)
    assert [row[1] for row in found] == pytest.approx([row[1] for row in whole], rel=1e-5)
    done = load_run(tmp_path / "real").done
    assert set(done.bytes_by_phase) == {"metadata", "reduce_scatter", "all_gather"}
    assert done.bytes_by_phase["metadata"] == 0
    assert done.bytes_by_phase == load_run(tmp_path / "virtual").done.bytes_by_phase


def test_weights_are_exactly_1_where_counts_are_equal_and_0_where_nothing_counts() -> None:
    places = [(replica, number) for replica in range(3) for number in range(7)]
    for count in (1, 3, 49, 1021):
        assert set(loss_weights(dict.fromkeys(places, count)).values()) == {1.0}
    assert loss_weights({(0, 0): 1, (0, 1): 3, (1, 0): 0, (1, 1): 4}) == {
        (0, 0): 0.5,
        (0, 1): 1.5,
        (1, 0): 0.0,
        (1, 1): 2.0,
    }
    assert set(loss_weights(dict.fromkeys(places, 0)).values()) == {0.0}
