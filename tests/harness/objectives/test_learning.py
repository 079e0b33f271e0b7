"""Questions are learned by heart: the loss, the labels and the accuracy belong together."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from objective_data import questions
from torch._C._distributed_c10d import HashStore

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.data.examples import LETTERS, Question, as_text
from gradwire.harness.data.mmlu import read_questions, split_files
from gradwire.harness.objectives.registry import make_objective
from gradwire.harness.trainer.loop import Trainer
from gradwire.harness.trainer.parts import build


def write_mmlu(folder: Path, **splits: Sequence[Question]) -> None:
    """Folders as those of MMLU's archive."""
    for split, asked in splits.items():
        (folder / split).mkdir(parents=True)
        with (folder / split / f"all_{split}.csv").open("w", newline="") as file:
            rows = ([each.question, *each.choices, LETTERS[each.answer]] for each in asked)
            csv.writer(file).writerows(rows)


def accuracy_by_heart(folder: Path, steps: int, *overrides: str) -> float:
    """Trains on the questions below `folder` and returns the accuracy on those same ones."""
    config = validate(
        compose(
            [
                *("size=small", "model=llama1b_mmlu", f"dataset.path={folder}", "codec=dynamiq"),
                *("cluster=virtual", "cluster.workers=2", f"train.steps={steps}", f"eval.every={steps}"),
                *("measure.vnmse_every=0", *overrides),
            ]
        )
    )
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parts = build(config, torch.device("cpu"))
        data = parts.data
        both = {"train": data.columns["train"], "held_out": data.columns["train"]}
        seen = make_objective("choice", replace(data, held_out=data.train, columns=both))
        (folder / "run").mkdir()
        trainer = Trainer(config, replace(parts, objective=seen), folder / "run", writes=True)
        trainer.advance(trainer.start(), steps)
    finally:
        dist.destroy_process_group()
    rows = (folder / "run" / "evals.jsonl").read_text().splitlines()
    return float(json.loads(rows[-1])["accuracy"])


def test_questions_are_memorized(tmp_path: Path) -> None:
    asked = {question.question: question for question in questions(60)}
    write_mmlu(tmp_path, test=list(asked.values())[:24], val=questions(3, seed=1))
    assert accuracy_by_heart(tmp_path, 40, "train.micro_batch=12", "train.lr=6e-3") >= 0.95


def test_64_questions_of_mmlu_are_memorized(real_data: Path, tmp_path: Path) -> None:
    files = split_files(real_data / "mmlu", "validation")
    shortest = sorted(
        (each for file in files for each in read_questions(file)), key=lambda q: len(as_text(q))
    )
    write_mmlu(tmp_path, test=shortest[:64], val=shortest[64:72])
    assert accuracy_by_heart(tmp_path, 40, "train.micro_batch=16", "train.lr=6e-3") >= 0.95
