"""Masked models get their loss on text, classifiers the metrics of their own task, and both a line on why."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import WORDS
from random_checkpoints import save_random
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.launch.launch import run_here
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.score.study import STUDY as SCORE

SHORT = (
    "cluster=virtual",
    "cluster.workers=2",
    "train.steps=1",
    "eval.max_sequences=10",
    "eval.micro_batch=4",
)


def trained(folder: Path, *overrides: str) -> dict[str, Any]:
    """Trains a step; returns the evaluation at its end."""
    run_here(validate(compose([*TINY_MODEL, *SHORT, *overrides])), folder)
    last: dict[str, Any] = json.loads((folder / "evals.jsonl").read_text().splitlines()[-1])
    return last


def scored(checkpoint: Path, folder: Path, *overrides: str) -> dict[str, Any]:
    config = validate_any(compose(["task=score", f"checkpoint={checkpoint}", *overrides]))
    assert SCORE.run(config, folder) == 0
    found: dict[str, Any] = json.loads((folder / "scores.json").read_text())
    return found


def write_text(folder: Path) -> Path:
    """Paragraphs of nonsense."""
    author = random.Random(1)
    folder.mkdir()
    paragraphs = [" ".join(author.choices(WORDS, k=60)) for _ in range(200)]
    (folder / "words.txt").write_text("\n\n".join(paragraphs))
    return folder


def write_glue(folder: Path) -> Path:
    """Sentences of our own in the shape of SST-2."""
    author = random.Random(0)
    (folder / "SST-2").mkdir(parents=True)
    for name, count in (("train", 40), ("dev", 12)):
        rows = [f"{' '.join(author.choices(WORDS, k=5))}\t{number % 2}" for number in range(count)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def test_a_masked_models_loss_is_that_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path / "text")
    last = trained(tmp_path / "run", "model=tinybert", f"dataset.path={text}")
    capsys.readouterr()
    found = scored(tmp_path / "run", tmp_path / "out", "score.batch=4")
    (task,) = found["tasks"].items()
    assert task[0] == "masked_lm"
    assert {key: value["value"] for key, value in task[1]["metrics"].items()} == {
        key: last[key] for key in ("loss", "perplexity")
    }
    assert task[1]["documents"] == task[1]["available"] == 10
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{last['perplexity']:.4f}" in printed
    assert "run is a masked model: it restores hidden tokens" in printed
    assert "GLUE needs a classification head" in printed
    fewer = scored(tmp_path / "run", tmp_path / "fewer", "score.batch=4", "score.limit=4")["tasks"][
        "masked_lm"
    ]
    assert fewer["documents"] == 4
    assert fewer["metrics"]["loss"]["value"] != last["loss"]
    with pytest.raises(ConfigError, match=r"tasks=\[piqa\]: .* is a masked model.*; use masked_lm"):
        scored(tmp_path / "run", tmp_path / "none", "tasks=[piqa]")


def test_a_masked_folder_needs_text(tmp_path: Path) -> None:
    folder = save_random(tmp_path / "bert", "masked")
    with pytest.raises(
        ConfigError, match=r"tasks=\[masked_lm\]: needs text; use score.data=<folder with text/>"
    ):
        scored(folder, tmp_path / "out")
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match="tasks=masked_lm needs text or wikitext-2, a folder of text"):
        scored(folder, tmp_path / "out", f"score.data={tmp_path / 'data'}")
    write_text(tmp_path / "data" / "text")
    found = scored(folder, tmp_path / "out", f"score.data={tmp_path / 'data'}")["tasks"]["masked_lm"]
    assert 4 < found["metrics"]["loss"]["value"] < 7, "random weights: about log 300"
    assert found["documents"] > 1


def test_a_classifier_has_the_metrics_of_its_task(tmp_path: Path) -> None:
    data = write_glue(tmp_path / "data" / "glue")
    glue = ("model=tinybert_glue", "dataset=glue", f"dataset.path={data}")
    last = trained(tmp_path / "run", *glue)
    found = scored(tmp_path / "run", tmp_path / "out", "score.batch=4")
    (task,) = found["tasks"].items()
    assert task[0] == "sst2"
    assert {key: value["value"] for key, value in task[1]["metrics"].items()} == {
        key: last[key] for key in ("loss", "accuracy")
    }
    share = last["accuracy"]
    assert task[1]["metrics"]["accuracy"]["stderr"] == pytest.approx((share * (1 - share) / 9) ** 0.5)
    assert "is a classifier" in found["note"]
    whole = scored(tmp_path / "run", tmp_path / "all", f"score.data={tmp_path / 'data'}")["tasks"]["sst2"]
    assert whole["documents"] == 12
    for asked in ("[rte]", "[masked_lm]", "[arc_easy]"):
        with pytest.raises(ConfigError, match="is a classifier: it gives labels.*; use sst2"):
            scored(tmp_path / "run", tmp_path / "none", f"tasks={asked}")
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "run" / "checkpoint", alone)
    with pytest.raises(ConfigError, match="tasks=null: .* name it by tasks=, one of sst2, rte, cola"):
        scored(alone, tmp_path / "none", f"score.data={tmp_path / 'data'}")
    named = scored(alone, tmp_path / "named", "tasks=[sst2]", f"score.data={tmp_path / 'data'}")
    assert named["tasks"]["sst2"]["metrics"]["accuracy"] == whole["metrics"]["accuracy"]
