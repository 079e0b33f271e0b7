"""Labelled sentences: their rows, their segments, and the confusion matrix that the metrics come from."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from objective_data import as_examples, model_for, sentences, written

from gradwire.harness.data.token_data import TokenData
from gradwire.harness.objectives.examples import matthews_correlation
from gradwire.harness.objectives.registry import make_objective


def test_rows_are_sentences_between_separators(labelled_data: TokenData) -> None:
    tokenizer = labelled_data.tokenizer
    end = tokenizer.eos_token
    lengths, second = (labelled_data.column("held_out", name) for name in ("length", "second"))
    for index, example in enumerate(sentences(17, seed=1)):
        row = labelled_data.held_out[index]
        parts = [end, example.first, end] + ([example.second, end] if example.second is not None else [])
        assert tokenizer.decode(row[: lengths[index]]) == "".join(parts)
        if example.second is not None:
            assert tokenizer.decode(row[second[index] : lengths[index]]) == example.second + end
        else:
            assert second[index] == lengths[index]


def test_a_batch_has_labels_masks_and_segments(labelled_data: TokenData) -> None:
    indices = torch.tensor([0, 1, 3])
    batch = make_objective("classification", labelled_data).batch(indices)
    examples = [sentences(40)[index] for index in indices.tolist()]
    assert batch["labels"].tolist() == [example.label for example in examples]
    lengths, second = (labelled_data.column("train", name)[indices] for name in ("length", "second"))
    assert batch["attention_mask"].sum(1).tolist() == lengths.tolist()
    assert batch["token_type_ids"].sum(1).tolist() == (lengths - second).tolist()
    assert (batch["token_type_ids"] <= batch["attention_mask"]).all()


def test_an_evaluation_counts_what_the_model_says_of_each_example(labelled_data: TokenData) -> None:
    objective = make_objective("classification", labelled_data)
    model = model_for("bert", "classification", labelled_data)
    indices = torch.arange(len(labelled_data.held_out))
    metrics = objective.metrics(objective.evaluate(model, indices, torch.device("cpu")))
    predicted, losses = [], []
    for index in indices:
        batch = objective.batch(index[None], split="held_out")
        with torch.no_grad():
            output = model(**batch)
        predicted.append(int(output.logits.argmax()))
        losses.append(float(output.loss))
    true = [example.label for example in sentences(17, seed=1)]
    assert metrics["accuracy"] == np.mean(np.array(true) == np.array(predicted))
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert list(metrics) == ["loss", "accuracy", "matthews"] and objective.metric == "matthews"
    assert model.config.id2label == {0: "without", 1: "with"}


def test_matthews_is_the_correlation_of_two_labels() -> None:
    draw = random.Random(0)
    true = [draw.random() < 0.6 for _ in range(200)]
    predicted = [label if draw.random() < 0.8 else not label for label in true]
    confusion = [[0, 0], [0, 0]]
    for label, guess in zip(true, predicted, strict=True):
        confusion[label][guess] += 1
    assert matthews_correlation(confusion) == pytest.approx(np.corrcoef(true, predicted)[0, 1])


def test_matthews_of_more_labels_and_of_one_alone() -> None:
    assert matthews_correlation([[5, 0, 0], [0, 3, 0], [0, 0, 4]]) == pytest.approx(1)
    assert matthews_correlation([[0, 5], [5, 0]]) == pytest.approx(-1)
    assert matthews_correlation([[4, 0], [6, 0]]) == 0.0  # one answer to everything
    assert matthews_correlation([[4, 6], [0, 0]]) == 0.0
    # 21 right of 34: by Gorodkin's formula.
    confusion = [[8, 2, 1], [3, 7, 2], [1, 4, 6]]
    true, predicted, total, right = [11, 12, 11], [12, 13, 9], 34, 21
    shared = sum(a * b for a, b in zip(true, predicted, strict=True))
    spread = (total**2 - sum(a * a for a in true)) * (total**2 - sum(b * b for b in predicted))
    assert matthews_correlation(confusion) == pytest.approx((right * total - shared) / spread**0.5)


def test_of_a_pair_that_is_too_long_the_longer_sentence_is_cut(tmp_path: Path) -> None:
    examples = sentences(40)
    data = written(tmp_path, as_examples(examples, sentences(5, seed=1), ("without", "with")), length=16)
    lengths, second = (data.column("train", name) for name in ("length", "second"))
    cut = 0
    for index, example in enumerate(examples):
        first = len(data.tokenizer(example.first)["input_ids"])
        other = len(data.tokenizer(example.second)["input_ids"]) if example.second is not None else None
        room = 14 if other is None else 13
        while first + (other or 0) > room:
            first, other = (first, other - 1) if other is not None and other > first else (first - 1, other)
        cut += lengths[index] == 16 and first + (other or 0) == room
        assert abs(int(second[index]) - (first + 2)) <= 1  # of two equally long ones either may be cut
        assert lengths[index] == first + 2 + (0 if other is None else other + 1)
    assert 0 < data.description["train_cut"] <= cut
