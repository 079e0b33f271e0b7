"""The text that the cells of a sweep train on: real text by `sweep.data`, else the embedded one; the command
line wins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradwire.harness.config import validate
from gradwire.harness.config.compose import compose
from gradwire.harness.models import folder
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps import cell_data
from gradwire.harness.sweeps.cell_data import benchmarks_of, places
from gradwire.harness.sweeps.plan import Plan, plan_sweep

SWEEP = ("sweeps=dynamiq_fig4_fig5", "codec=bf16", "seed=0", "cluster=virtual", "network=simulated")


def planned(*arguments: str) -> Plan:
    lines = [*SWEEP, *arguments]
    hydra = compose([line for line in lines if "." not in line.partition("=")[0]], with_hydra=True).hydra
    return plan_sweep(hydra, lines)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in the published shapes."""
    folder = tmp_path / "texts"
    for name in ("wikitext-103", "ultrachat", "mmlu/test", "mmlu/val"):
        (folder / name).mkdir(parents=True)
    paragraph = " = Title = \n\n" + "A sentence of some words . " * 40 + "\n"
    (folder / "wikitext-103" / "train.txt").write_text(paragraph * 5)
    chat = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'
    (folder / "ultrachat" / "chats.jsonl").write_text(chat * 5)
    for split in ("test", "val"):
        (folder / "mmlu" / split / f"anatomy_{split}.csv").write_text('"What?",one,two,three,four,B\n' * 5)
    return folder


def test_without_a_folder_small_sizes_train_on_the_embedded_text(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for size in ("tiny", "gpu"):
        plan = planned(f"size={size}", "model=llama1b_mmlu")
        assert {cell.config.dataset.name for cell in plan.cells} == {"embedded"}
        assert {cell.text for cell in plan.cells} == {"embedded"}


def test_a_folder_names_the_text_of_each_model(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned("size=small", f"sweep.data={data}")
    found = {
        cell.config.model.name: (cell.config.dataset.name, cell.config.dataset.path) for cell in plan.cells
    }
    assert found == {
        "bert_large": ("wikitext103", str(data / "wikitext-103")),
        "llama1b": ("ultrachat", str(data / "ultrachat")),
        "gemma1b": ("ultrachat", str(data / "ultrachat")),
        "llama1b_mmlu": ("mmlu", str(data / "mmlu")),
    }
    for cell in plan.cells:  # what goes to a record names no folder of this machine
        assert cell.text is not None and re.fullmatch(r"[\w-]+ \(sha256 [0-9a-f]{12}\)", cell.text)
    assert not any("sweep." in text for cell in plan.cells for text in cell.cell.overrides)


def test_the_command_line_wins(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    own = planned(
        "size=small",
        "model=bert_large",
        f"sweep.data={data}",
        "dataset=text",
        f"dataset.path={data}/ultrachat",
    )
    assert {cell.config.dataset.path for cell in own.cells} == {str(data / "ultrachat")}
    assert {cell.text for cell in own.cells} == {None}


def test_what_scores_takes_the_benchmarks_from_the_folder(data: Path) -> None:
    score, train = ["task=score", "checkpoint=some"], ["codec=bf16"]
    own = [*score, "score.data=own"]
    config = compose(score, named_by_user=False)
    assert benchmarks_of(score, config, (), str(data)) == [*score, f"score.data={data}"]
    assert benchmarks_of(score, config, (), None) == score
    assert benchmarks_of(own, compose(own, named_by_user=False), ("score.data",), str(data)) == own
    assert benchmarks_of(train, compose(train, named_by_user=False), (), str(data)) == train


def test_the_papers_size_has_the_papers_data(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "_of_hub", lambda name, fetch: None)
    for name in ("weights_available", "tokenizer_available"):
        monkeypatch.setattr(validate, name, lambda model: None)
    monkeypatch.setattr(validate, "dataset_available", lambda dataset, model: None)
    monkeypatch.setattr(validate, "check_memory", lambda run: None)
    plan = planned("size=paper", "network.rate_mbit=100000")
    assert {cell.config.dataset.hub for cell in plan.cells} == {
        *("Salesforce/wikitext", "HuggingFaceH4/ultrachat_200k", "cais/mmlu")
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("sweep.data=nowhere",),
            "sweep.data=nowhere: no such folder; choose one with a sub-folder for each",
        ),
        (("sweep.data=.",), "sweep.data=.: has no wikitext-103, the text of dataset=wikitext103; add it"),
        (("sweep.minutes=0",), "sweep.minutes=0: choose a number above 0"),
    ],
)
def test_what_is_not_there_is_refused(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(said)):
        planned("size=small", "model=bert_large", *arguments)


def test_every_published_data_set_has_a_place() -> None:
    published = {
        path.stem
        for path in (conf_directory() / "dataset").glob("*.yaml")
        if yaml.safe_load(path.read_text()).get("hub")
    }
    assert published == places().keys()


def test_folders_of_images_are_distinguished_by_all_their_files(tmp_path: Path) -> None:
    """In a folder that also has text, only the text counts."""
    (tmp_path / "train.zip").write_bytes(b"one")
    one = cell_data._digest(tmp_path)
    (tmp_path / "train.zip").write_bytes(b"two")
    two = cell_data._digest(tmp_path)
    (tmp_path / "text.txt").write_text("words")
    with_text = cell_data._digest(tmp_path)
    (tmp_path / "train.zip").write_bytes(b"ten")
    assert one != two and cell_data._digest(tmp_path) == with_text
