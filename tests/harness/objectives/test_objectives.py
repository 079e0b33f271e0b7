"""Properties of every objective: its head, its metrics, padding, and evaluations of any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from objective_data import model_for
from torch import Tensor

from gradwire.harness.data.images import ImageData
from gradwire.harness.data.token_data import PreparedData, TokenData
from gradwire.harness.models.families import FAMILIES, HEADS
from gradwire.harness.models.vision import OBJECTIVE
from gradwire.harness.objectives.interface import IGNORED, Objective
from gradwire.harness.objectives.registry import OBJECTIVES, make_objective
from gradwire.harness.parallel.evaluate import evaluate
from gradwire.harness.parallel.interface import WeightedBatch
from gradwire.harness.parallel.passes import weighted
from gradwire.harness.timing.measure.metrics import METRICS

CPU = torch.device("cpu")
FAMILY = {"causal": "llama", "masked": "bert", "choice": "gemma", "classification": "bert"}
FAMILY |= {"image_classification": "resnet"}


@pytest.fixture
def data_for(
    text_data: TokenData, choice_data: TokenData, labelled_data: TokenData, image_data: ImageData
) -> Callable[[str], PreparedData]:
    kinds = {"documents": text_data, "questions": choice_data, "sentences": labelled_data}
    kinds |= {"images": image_data}
    return lambda name: kinds[OBJECTIVES[name].kind]


def test_every_objective_has_a_head_and_a_family() -> None:
    assert set(OBJECTIVES) == set(HEADS)
    of_text = {name for family in FAMILIES.values() for name in family.objectives}
    assert of_text | {OBJECTIVE} == set(OBJECTIVES)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_metrics_are_those_of_the_table(name: str, data_for: Callable[[str], TokenData]) -> None:
    objective = make_objective(name, data_for(name))
    sums = objective.evaluate(model_for(FAMILY[name], name, objective.data), torch.arange(4), CPU)
    assert len(sums) == objective.num_sums and all(isinstance(value, float) for value in sums)
    metrics = objective.metrics(sums)
    assert next(iter(metrics)) == "loss" and objective.metric in metrics
    assert all("evaluation" in METRICS[key].places and METRICS[key].better for key in metrics)


class Ranks:
    """A stand-in for a world with all that an evaluation needs."""

    def __init__(self, size: int) -> None:
        self.size, self.ranks, self.device = size, range(size), CPU

    def gather(self, rows: Mapping[int, list[float]]) -> list[list[float]]:
        return [rows[rank] for rank in self.ranks]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_any_number_of_ranks_gives_the_same_bits(name: str, data_for: Callable[[str], TokenData]) -> None:
    objective = make_objective(name, data_for(name))
    model = model_for(FAMILY[name], name, objective.data).train()
    found = [evaluate(model, objective, Ranks(size), 3) for size in (1, 2, 5, 40)]
    assert all(metrics == found[0] for metrics in found) and model.training


def _labels(name: str, objective: Objective, indices: Tensor, step: int) -> list[int]:
    """The number of labels of each row that the model's loss is on; a causal model shifts them."""
    labels = objective.batch(indices, key=(0, step))["labels"]
    if labels.dim() == 1:
        return [1] * len(labels)
    return [int(row[0 if FAMILY[name] == "bert" else 1 :].ne(IGNORED).sum()) for row in labels]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_labels_that_count_are_those_of_any_batch(name: str, data_for: Callable[[str], TokenData]) -> None:
    objective = make_objective(name, data_for(name))
    rows = torch.arange(len(objective.data.train)).flip(0)
    counted = objective.counted(rows)
    for step in range(2):
        found = _labels(name, objective, rows, step)
        assert len(set(found)) == 1 if counted is None else found == counted.tolist()
    assert (counted is None) == (name != "masked")


def test_tokens_of_a_chat_count_but_a_rows_first(text_data: TokenData) -> None:
    counted = torch.rand(text_data.train.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    counted[0], counted[1] = False, torch.arange(counted.shape[1]) == 0
    chats = replace(text_data, columns={"train": {"counted": counted}})
    objective, rows = make_objective("causal", chats), torch.arange(len(counted))
    found = objective.counted(rows)
    assert found is not None and found.tolist() == _labels("causal", objective, rows, 0)
    assert found[:2].tolist() == [0, 0] and len(set(found.tolist())) > 3


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_a_micro_batch_in_which_nothing_counts_adds_nothing(name: str, text_data: TokenData) -> None:
    objective = make_objective(name, text_data)
    model, batch = model_for(FAMILY[name], name, text_data), objective.batch(torch.arange(2), key=(0, 0))
    batch["labels"].fill_(IGNORED)
    output = model(**batch)
    mean = output.loss
    assert not mean.isfinite()
    assert objective.sums(output, batch, torch.arange(2)) == (0.0, 0.0)
    loss = weighted(mean, WeightedBatch(batch, 0.0))
    loss.backward()
    assert float(loss.detach()) == 0
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("name", ["choice", "classification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_loss_and_no_gradient(
    name: str, family: str, data_for: Callable[[str], TokenData]
) -> None:
    """More padding, of any token, behind the rows of a batch: only the order of sums differs."""
    if name not in FAMILIES[family].objectives:
        pytest.skip(f"{family} has no {name}")
    objective = make_objective(name, data_for(name))
    model = model_for(family, name, objective.data)
    batch = objective.batch(torch.arange(6))
    more = {"input_ids": 7, "attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}
    wider = {
        key: value if value.dim() == 1 else torch.cat([value, torch.full((6, 9), more[key])], dim=1)
        for key, value in batch.items()
    }
    found = []
    for inputs in (batch, wider):
        model.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        found.append((float(loss.detach()), torch.cat(gradients)))
    (loss, gradient), (wider_loss, wider_gradient) = found
    assert wider_loss == pytest.approx(loss, rel=1e-6)
    assert (wider_gradient - gradient).norm() < 1e-5 * gradient.norm()


@pytest.mark.parametrize("name", ["choice", "classification"])
def test_a_row_has_the_same_loss_in_any_batch(name: str, data_for: Callable[[str], TokenData]) -> None:
    """Rows of a batch have nothing to do with one another, though the longest decides the padding."""
    objective = make_objective(name, data_for(name))
    model = model_for(FAMILY[name], name, objective.data)
    together = objective.evaluate(model, torch.arange(8), CPU)
    alone = [objective.evaluate(model, torch.tensor([row]), CPU) for row in range(8)]
    summed = [sum(column) for column in zip(*alone, strict=True)]
    assert together[0] == pytest.approx(summed[0], rel=1e-5) and list(together[1:]) == summed[1:]
