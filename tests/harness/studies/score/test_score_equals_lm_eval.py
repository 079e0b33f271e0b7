"""Scores and requests are those of lm-eval's own way: its files, the hub's records, its model."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_files import DOCUMENTS, HUB, Records, by_subject
from random_checkpoints import save_random

from gradwire.harness.studies.score.benchmarks import BENCHMARKS

Score = Callable[..., dict[str, Any]]

TASKS = [*HUB, "mmlu"]


def write_yaml(folder: Path, task: str, stock: str, splits: dict[str, Records]) -> None:
    """A task that is lm-eval's own, read from files of records."""
    from gradwire.harness.studies.score.likelihood import STOCK

    files = {}
    for split, found in splits.items():
        path = folder / f"{task}-{split}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in found))
        files[split] = str(path)
    lines = [
        f"include: {STOCK / stock}",
        f"task: {task}",
        *("dataset_path: json", "dataset_name: null"),
        f"dataset_kwargs: {json.dumps({'data_files': files, 'cache_dir': str(folder / 'cache')})}",
        *(f"{key}: null" for key in ("training_split", "validation_split", "test_split")),
    ]
    scored = next(split for split in splits if split != "dev")
    lines[-1 if scored == "test" else -2] = f"{scored}_split: {scored}"
    (folder / f"{task}.yaml").write_text("\n".join(lines) + "\n")


def write_subjects(folder: Path, subjects: dict[str, Records]) -> None:
    """MMLU's tasks and their group. The library of data sets would take seconds to read 57 files."""
    from gradwire.harness.studies.score.likelihood import STOCK

    (folder / "subjects.json").write_text(json.dumps(subjects))
    (folder / "subjects.py").write_text(
        "import json, datasets, pathlib\n"
        "from datasets.table import InMemoryTable\n"
        "def read(subject, **_):\n"
        "    own = json.loads(pathlib.Path(__file__).with_name('subjects.json').read_text())[subject]\n"
        "    rows = {'test': own, 'dev': own[:1]}\n"
        "    tables = {key: InMemoryTable.from_pylist(found) for key, found in rows.items()}\n"
        "    return {key: datasets.Dataset(found, fingerprint=key) for key, found in tables.items()}\n"
    )
    for subject in subjects:
        lines = [
            f"include: {STOCK / 'mmlu/default'}/mmlu_{subject}.yaml",
            f"dataset_kwargs: {{subject: {subject}}}",
            "custom_dataset: !function subjects.read",
        ]
        (folder / f"mmlu_{subject}.yaml").write_text("\n".join(lines) + "\n")
    for group in ("", "_humanities", "_other", "_social_sciences", "_stem"):
        stock = STOCK / "mmlu/default" / f"_mmlu{group}.yaml"
        (folder / stock.name).write_text(stock.read_text())


@pytest.fixture(scope="module")
def stock(records: dict[str, Records], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """lm-eval's tasks as its own command would load them."""
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("yaml")
    for name, (file, split) in HUB.items():
        write_yaml(folder, name, file, {split: records[name]})
    write_subjects(folder, by_subject(records["mmlu"]))
    return TaskManager(include_defaults=False, include_path=str(folder))


@pytest.fixture
def no_inventory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """lm-eval lists all packages of the machine, which takes seconds."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    return


def test_scores_are_lm_evals_to_the_last_digit(
    stock: Any, checkpoint: Path, scored: Score, no_inventory: None
) -> None:
    import lm_eval

    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    ours = scored("score.batch=4")
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(checkpoint)},
        tasks=list(TASKS),
        task_manager=stock,
        batch_size=4,
        device="cpu",
        log_samples=False,
    )
    assert list(ours["tasks"]) == list(BENCHMARKS)
    values = set()
    for name in TASKS:
        found, figures = ours["tasks"][name], theirs["results"][name]
        assert set(found["metrics"]) == ({"acc"} if name in ("winogrande", "mmlu") else {"acc", "acc_norm"})
        for metric, value in found["metrics"].items():
            assert value["value"] == figures[f"{metric},none"], (name, metric)
            assert value["stderr"] == figures[f"{metric}_stderr,none"], (name, metric)
            values.add(value["value"])
        leaves = [task for task in theirs["n-samples"] if task == name or task.startswith(f"{name}_")]
        assert found["documents"] == sum(theirs["n-samples"][task]["effective"] for task in leaves)
        assert found["left_out"] == found["shots"] == 0
        if name != "mmlu":
            assert found["version"] == str(theirs["versions"][name])
    assert len(values) > 4, "they say something"
    assert ours["tasks"]["hellaswag"]["documents"] == DOCUMENTS
    assert ours["versions"]["lm-eval"] == metadata.version("lm-eval")


def test_requests_are_the_stock_tasks(stock: Any, data: Path) -> None:
    from gradwire.harness.studies.score.likelihood import load_tasks

    ours, _ = load_tasks(list(BENCHMARKS.values()), data, None)
    names = [*HUB, "mmlu_virology", "mmlu_world_religions"]
    theirs = stock.load(names)["tasks"]
    for name in names:
        both = []
        for task in (ours["tasks"][name], theirs[name]):
            task.set_config("num_fewshot", 0)
            task.build_all_requests()
            both.append([(each.doc_id, each.idx, each.request_type, each.args) for each in task.instances])
        assert both[0] == both[1], name
        assert len(both[0]) >= 2 * len(list(ours["tasks"][name].eval_docs))
    example = ours["tasks"]["mmlu_virology"]
    shown = example.fewshot_context(example.eval_docs[0], num_fewshot=1)
    assert shown == theirs["mmlu_virology"].fewshot_context(
        theirs["mmlu_virology"].eval_docs[0], num_fewshot=1
    )


def test_what_does_not_fit_into_the_context_is_counted(
    stock: Any, tmp_path: Path, scored: Score, records: dict[str, Records]
) -> None:
    """Beginnings are cut as lm-eval cuts them; documents with an ending that is too long are left out."""
    from transformers import AutoTokenizer

    context = 42
    small = save_random(tmp_path / "short", context=context)
    tokens = AutoTokenizer.from_pretrained(small)
    names = ["arc_easy", "hellaswag", "piqa", "winogrande"]
    found = scored(f"checkpoint={small}", f"tasks=[{','.join(names)}]")["tasks"]
    some_left_out = 0
    for name, task in stock.load(names)["tasks"].items():
        task.set_config("num_fewshot", 0)
        task.build_all_requests()
        lengths: dict[int, list[tuple[int, int]]] = {}
        for each in task.instances:
            told, ending = each.args
            whole, before = len(tokens.encode(told + ending)), len(tokens.encode(told))
            lengths.setdefault(each.doc_id, []).append((whole, whole - before))
        kept = {n: own for n, own in lengths.items() if max(ending for _, ending in own) <= context}
        cut = [whole - 1 > context for own in kept.values() for whole, _ in own]
        assert found[name]["left_out"] == len(lengths) - len(kept)
        assert found[name]["documents"] == len(kept)
        assert found[name]["requests"] == len(cut)
        assert found[name]["cut"] == pytest.approx(sum(cut) / len(cut))
        some_left_out += len(lengths) - len(kept)
        assert name == "winogrande" or sum(cut)
    assert some_left_out
    tiny = save_random(tmp_path / "shorter", context=4)
    with pytest.raises(ValueError, match="each document has an ending that is longer than the model's") as e:
        scored(f"checkpoint={tiny}", "tasks=[hellaswag]", folder="tiny")
    assert "context of 4 tokens" in str(e.value)


def test_the_batch_does_not_change_a_score(scored: Score) -> None:
    found = [
        scored("tasks=[arc_easy,piqa]", f"score.batch={batch}", folder=f"b{batch}")["tasks"]
        for batch in (1, 3, 64)
    ]
    again = scored("tasks=[arc_easy,piqa]", "score.batch=3", folder="again")["tasks"]
    assert found[0] == found[1] == found[2] == again
