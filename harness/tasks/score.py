"""`task=score`: what a finished checkpoint scores on published benchmarks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gradwire.codecs.wording import did_you_mean
from gradwire.harness.data.available import repository_available
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.identity import data_fingerprint, run_id
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.score.benchmarks import BENCHMARKS, Benchmark
from gradwire.harness.studies.score.checkpoint import CANNOT, Checkpoint, find_checkpoint
from gradwire.harness.studies.score.process import as_if_alone
from gradwire.harness.studies.score.settings import ScoreConfig, ScoreTask
from gradwire.harness.studies.score.summary import SCORES, Scores
from gradwire.harness.studies.score.tables import scores_page
from gradwire.harness.tasks.once import run_once

if TYPE_CHECKING:
    from gradwire.harness.report.tables import Page

NO_DATA = "use score.data=<folder with its files> (docs/scoring.md)"


def resolve(config: ScoreTask) -> ScoreTask:
    """Fills in tasks and device; raises ValueError in one line if the checkpoint, a task or its data is not
    there, or they do not fit."""
    checkpoint = find_checkpoint(config.checkpoint)
    chosen = _chosen(config, checkpoint)
    device = config.score.device
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("score.device=cuda: there is no GPU here; use score.device=cpu or auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    digest = hashlib.sha256(checkpoint.digest().encode())
    for each in chosen:
        digest.update(_data_digest(each, config.score).encode())
    settled = replace(config.score, device=device, digest=digest.hexdigest()[:12])
    return replace(config, tasks=[each.name for each in chosen], score=settled)


def name(config: ScoreTask) -> str:
    """`score-<the checkpoint's name>`."""
    return f"score-{find_checkpoint(config.checkpoint).name}"


def run(config: ScoreTask, directory: Path) -> int:
    """Scores, or shows the scores that are there; returns the exit code."""
    run_once(config, directory, partial(_write, config, directory))
    print(scores_page([Scores.read(directory / SCORES)]).text)
    print(f"run: {directory}")
    return 0


def compare(folders: Sequence[Path], output: Path, axes: Sequence[str]) -> Page:
    """Makes a sweep's table: checkpoints by tasks."""
    from gradwire.harness.studies.score.tables import compare_scores

    return compare_scores(folders, output, axes)


def _chosen(config: ScoreTask, checkpoint: Checkpoint) -> list[Benchmark]:
    """The benchmarks asked for, in the table's order."""
    asked = list(BENCHMARKS) if config.tasks is None else config.tasks
    for task in asked:
        if task not in BENCHMARKS:
            near = did_you_mean(task, BENCHMARKS)
            raise ValueError(f"tasks=[{task}]: no such task; choose from {', '.join(BENCHMARKS)}{near}")
    if checkpoint.kind != "causal":
        raise ValueError(
            f"tasks=[{asked[0]}]: checkpoint={config.checkpoint} {CANNOT[checkpoint.kind]}; leave it out"
        )
    return [each for name, each in BENCHMARKS.items() if name in asked]


def _data_digest(benchmark: Benchmark, score: ScoreConfig) -> str:
    """Identifies the files that are read; what comes from the hub only by name.

    Raises ValueError where the data cannot be had.
    """
    if score.data is None:
        reason = repository_available(benchmark.hub)
        if reason is not None:
            raise ValueError(f"tasks=[{benchmark.name}] ({benchmark.hub}): {reason}; {NO_DATA}")
        return benchmark.hub
    folder = Path(score.data).expanduser()
    if not folder.is_dir():
        raise ValueError(f"score.data={score.data}: no such folder; {NO_DATA}")
    files = [
        path for splits in benchmark.files(folder).values() for found in splits.values() for path in found
    ]
    return "".join(data_fingerprint(path) for path in files)


def _write(config: ScoreTask, directory: Path) -> None:
    checkpoint = find_checkpoint(config.checkpoint)
    with as_if_alone(config.score.threads):
        scores = _score(config, checkpoint)
    write_atomically(directory / SCORES, scores.to_json())


def _score(config: ScoreTask, checkpoint: Checkpoint) -> Scores:
    from gradwire.harness.studies.score.likelihood import score

    settings = config.score
    model, tokenizer = checkpoint.model(), checkpoint.tokenizer()
    model.to(settings.device)  # type: ignore[arg-type]
    tasks = score(
        model,
        tokenizer,
        _chosen(config, checkpoint),
        data=None if settings.data is None else Path(settings.data).expanduser(),
        limit=settings.limit,
        batch=settings.batch,
    )
    found = provenance()
    return Scores(
        tasks=tasks,
        checkpoint=checkpoint.name,
        architecture=checkpoint.architecture,
        parameters=sum(each.numel() for each in model.parameters()),
        context=int(model.config.max_position_embeddings),
        dtype=str(model.dtype).removeprefix("torch."),
        note=None,
        trained=dict(checkpoint.trained or {}),
        limit=settings.limit,
        batch=settings.batch,
        device=settings.device,
        seed=config.seed,
        config_hash=run_id(config),
        **found | {"versions": found["versions"] | {"lm-eval": metadata.version("lm-eval")}},
    )
