"""MMLU and GLUE: the same rows from their repositories and from files, and which runs these are."""

from dataclasses import replace

import pytest
import torch
from repositories import make_repository, sentences

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.data.prepare import data_source, prepare_data
from gradwire.harness.record.identity import run_id

CASES = [
    ("mmlu", "llama1b_mmlu", None, "all"),
    ("glue", "tinybert_glue", "sst2", "sst2"),
    ("glue", "tinybert_glue", "rte", "."),
    ("glue", "tinybert_glue", "cola", "."),
]


def asked(name, model, task, *more):
    chosen = [f"dataset.configuration={task}"] if task else []
    return validate(compose(["size=tiny", f"model={model}", f"dataset={name}", *chosen, *more]))


@pytest.mark.parametrize(("name", "model", "task", "folder"), CASES)
def test_files_and_repository_give_the_same_rows(name, model, task, folder, home):
    repository = make_repository(name, home)
    runs = [asked(name, model, task), asked(name, model, task, f"dataset.path={repository / folder}")]
    fetched, local = (prepare_data(run.dataset, run.model, home / "prepared") for run in runs)
    for split in ("train", "held_out"):
        assert torch.equal(fetched.rows(split), local.rows(split)) and len(fetched.rows(split)) == 30
        assert fetched.columns[split].keys() == local.columns[split].keys()
        for column in fetched.columns[split]:
            assert torch.equal(fetched.column(split, column), local.column(split, column))
    same = ("sha256", "metric", "split", "train_examples", "majority_accuracy")
    assert [fetched.description[key] for key in same] == [local.description[key] for key in same]
    assert fetched.description["corpus"].startswith(repository.relative_to(home).as_posix())
    assert fetched.description["metric"] == ("matthews" if task == "cola" else "accuracy")
    assert run_id(runs[0]) != run_id(runs[1])


def test_a_split_without_labels_is_named(home):
    make_repository("glue", home)
    run = asked("glue", "tinybert_glue", "sst2", "dataset.held_out_split=test")
    with pytest.raises(ValueError, match=r"dataset=glue \(nyu-mll/glue\), split test: a label is -1") as no:
        prepare_data(run.dataset, run.model, home / "prepared")
    assert "\n" not in str(no.value)


def test_the_hubs_splits_are_those_asked_for(home):
    make_repository("mmlu", home)
    run = asked("mmlu", "llama1b_mmlu", None, "dataset.train_split=dev")
    found = data_source(run.dataset).load()
    assert [question.question for question in found.train] == sentences("dev", 30)
    assert [question.question for question in found.held_out] == sentences("validation", 30)
    other = replace(run.dataset, train_split="auxiliary_train")
    assert data_source(run.dataset).fingerprint() != data_source(other).fingerprint()
