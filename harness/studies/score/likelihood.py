"""Scores on multiple choice: lm-eval's own tasks, prompts, model and metrics, on documents read by this
package.

This module imports lm-eval, which takes seconds, so only scoring itself imports it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import lm_eval.tasks
from datasets.table import InMemoryTable
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.score.benchmarks import Benchmark
from gradwire.harness.studies.score.records import Record
from gradwire.harness.studies.score.study import Scored, ScoredValue, Scoring

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STOCK = Path(lm_eval.tasks.__file__).parent
"""lm-eval's own tasks."""

FILTER = "none"
"""lm-eval names each figure `<metric>,<filter>`; these tasks do not filter the model's output."""

SPLITS = ("training_split", "validation_split", "test_split")


class _Divided(HFLM):  # type: ignore[misc]
    """lm-eval's model, stopped after tokenizing the requests; returns the number of tokens of each context
    and ending."""

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any:
        return [(len(context), len(ending)) for _, context, ending in requests]


class _Shown(HFLM):  # type: ignore[misc]
    """lm-eval's model, which advances `progress` by batches instead of showing its own bar."""

    progress: Progress

    def _loglikelihood_tokens(self, requests: Any, **options: Any) -> Any:
        before = self.progress.done
        self.progress.expect(len(requests))
        found = super()._loglikelihood_tokens(requests, **options | {"disable_tqdm": True})
        # lm-eval combines requests with the same context into one row of a batch.
        self.progress.advance(number=len(requests) - (self.progress.done - before))
        return found

    def _model_call(self, inps: Any, *args: Any, **options: Any) -> Any:
        found = super()._model_call(inps, *args, **options)
        self.progress.advance(number=len(inps))
        return found


@dataclass
class _Documents:
    """The scored split of one of lm-eval's tasks."""

    available: int
    left_out: int = 0
    requests: int = 0
    cut: int = 0


def score(
    benchmarks: Sequence[Benchmark],
    data: Path | None,
    tokenizer: PreTrainedTokenizerBase,
    scoring: Scoring,
) -> dict[str, Scored]:
    """Scores the model on the first documents of each benchmark; by benchmark.

    `data` is the folder with their files; with None the hub is used. The limit is divided over the tasks of a
    benchmark. Raises ValueError in one line for unusable files, and if no document of a task fits into the
    model's context.
    """
    model, limit = scoring.model, scoring.limit
    loaded, documents = load_tasks(benchmarks, data, limit)
    divided = _Divided(pretrained=model, tokenizer=tokenizer)
    for name, task in loaded["tasks"].items():
        task.set_config(key="num_fewshot", value=0)  # as lm-eval's command does by default
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        _fit(task, documents[name], divided)
    lm = _Shown(pretrained=model, tokenizer=tokenizer, batch_size=scoring.batch)
    lm.progress = scoring.progress
    found = evaluate(lm=lm, task_dict=loaded, log_samples=False)
    return {
        each.name: _scored(each, found, [documents[task] for task in each.splits], data)
        for each in benchmarks
    }


def load_tasks(
    benchmarks: Sequence[Benchmark], data: Path | None, limit: int | None
) -> tuple[Any, dict[str, _Documents]]:
    """lm-eval's tasks with the requested documents, and the number of documents of each."""
    manager = TaskManager(
        include_defaults=False,
        include_path=[STOCK / folder for folder in dict.fromkeys(each.stock for each in benchmarks)],
    )
    counts = dict[str, _Documents]()
    for each in benchmarks:
        most = None if limit is None else math.ceil(limit / len(each.splits))
        local = dict(each.records(data)) if data is not None else None
        for task, split in each.scored.items():
            entry = manager.task_index[task]
            stock = load_yaml(entry.yaml_path, resolve_func=True)
            splits = _tables(local[task]) if local is not None else _fetched(stock, split)
            counts[task] = _Documents(available=len(splits[split]))
            splits[split] = _first(splits[split], most)
            manager.task_index[task] = replace(entry, yaml_path=None, cfg=_with(stock, splits))
    return manager.load([each.name for each in benchmarks]), counts


def _with(stock: Mapping[str, Any], splits: Mapping[str, Any]) -> dict[str, Any]:
    """A stock task's settings, with documents given instead of downloaded."""
    lacking = {key: None for key in SPLITS if stock.get(key) not in splits}
    # lm-eval calls it with the task's settings of its data set.
    return {**stock, **lacking, "custom_dataset": lambda **_: splits}


def _tables(splits: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Records as tables of the `datasets` library; fingerprints are constant, because nothing is cached."""
    return {
        name: datasets.Dataset(InMemoryTable.from_pylist(list(records)), fingerprint=os.urandom(8).hex())
        for name, records in splits.items()
    }


def _fetched(stock: Mapping[str, Any], scored: str) -> dict[str, Any]:
    """The stock task's scored split from the hub or its cache, and the split of its examples."""
    path, name = stock["dataset_path"], stock.get("dataset_name")
    try:
        found = datasets.load_dataset(path, name, **(stock.get("dataset_kwargs") or {}))
        wanted = {scored, stock.get("fewshot_split") or scored}
        return {split: found[split] for split in wanted}
    except Exception as error:  # HTTP clients', file systems' and parsers' own types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} cannot be read ({reason}); use score.data=<folder with its files>"
        ) from error


def _first(dataset: Any, most: int | None) -> Any:
    return dataset if most is None or most >= len(dataset) else _chosen(dataset, range(most))


def _chosen(dataset: Any, numbers: Sequence[int]) -> Any:
    return dataset.select(numbers, new_fingerprint=os.urandom(8).hex())


def _fit(task: Any, documents: _Documents, divided: HFLM) -> None:
    """Removes documents with an ending that is longer than the model's context, and counts truncated
    requests.

    lm-eval truncates the beginning of requests that are too long. It fails for an ending that leaves no room
    for a beginning.
    """
    split = task.config.test_split or task.config.validation_split
    task.build_all_requests()
    lengths = divided.loglikelihood(task.instances, disable_tqdm=True)
    longest = divided.max_length
    too_long = {
        instance.doc_id
        for instance, (_, ending) in zip(task.instances, lengths, strict=True)
        if ending > longest
    }
    asked = len(task.dataset[split])
    if len(too_long) == asked:
        raise ValueError(
            f"tasks={task.task_name}: each document has an ending that is longer than the model's context of "
            f"{longest} tokens; leave this task out, or score a model with a longer context"
        )
    if too_long:
        kept = [number for number in range(asked) if number not in too_long]
        task.dataset[split] = _chosen(task.dataset[split], kept)
    else:  # lm-eval would build them again, and compile the templates of each document
        task.build_all_requests = lambda **_: None
    kept_lengths = [
        each
        for instance, each in zip(task.instances, lengths, strict=True)
        if instance.doc_id not in too_long
    ]
    documents.left_out, documents.requests = len(too_long), len(kept_lengths)
    # The last token of a request is only predicted, so it needs no position in the context.
    documents.cut = sum(context + ending - 1 > longest for context, ending in kept_lengths)


def _scored(
    benchmark: Benchmark, found: Mapping[str, Any], documents: Sequence[_Documents], data: Path | None
) -> Scored:
    figures = found["results"][benchmark.name]
    names = [key.partition(",")[0] for key in figures if key.endswith(f",{FILTER}") and "_stderr" not in key]
    requests = sum(each.requests for each in documents)
    return Scored(
        metrics={name: _value(figures, name) for name in names},
        documents=sum(found["n-samples"][task]["effective"] for task in benchmark.splits),
        available=sum(each.available for each in documents),
        left_out=sum(each.left_out for each in documents),
        requests=requests,
        cut=sum(each.cut for each in documents) / requests,
        version=str(found["versions"][benchmark.name]),
        shots=max(found["n-shot"][task] for task in benchmark.splits),
        source=benchmark.hub if data is None else benchmark.name,
    )


def _value(figures: Mapping[str, Any], name: str) -> ScoredValue:
    """A figure; for a single document lm-eval gives no standard error."""
    stderr = figures.get(f"{name}_stderr,{FILTER}")
    known = float(stderr) if isinstance(stderr, int | float) and math.isfinite(stderr) else None
    return ScoredValue(float(figures[f"{name},{FILTER}"]), known)
