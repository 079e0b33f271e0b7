"""`task=score`: the scores of a finished checkpoint on published benchmarks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gradwire.harness.record.identity import run_id
from gradwire.harness.record.provenance import provenance
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.score.checkpoint import Checkpoint, find_checkpoint
from gradwire.harness.studies.score.choose import choose, note_on
from gradwire.harness.studies.score.held_out import score_held_out
from gradwire.harness.studies.score.process import as_if_alone
from gradwire.harness.studies.score.study import Scored, Scores, ScoreTask, Scoring
from gradwire.harness.studies.study import Measured

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve(config: ScoreTask) -> ScoreTask:
    """Fills in tasks, device and digest; raises ValueError in one line if the checkpoint, a task or its data
    is unavailable, or if they do not fit together."""
    checkpoint = find_checkpoint(config.checkpoint)
    chosen = choose(config, checkpoint)
    device = config.score.device
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("score.device=cuda: there is no GPU here; use score.device=cpu or auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    digest = hashlib.sha256(f"{checkpoint.digest()} {chosen.contents()}".encode()).hexdigest()[:12]
    return replace(config, tasks=chosen.names, score=replace(config.score, device=device, digest=digest))


def name(config: ScoreTask) -> str:
    """`score-<the checkpoint's name>`."""
    return f"score-{find_checkpoint(config.checkpoint).name}"


def measure(config: ScoreTask, directory: Path) -> Measured:
    """Scores the checkpoint on the chosen tasks."""
    checkpoint = find_checkpoint(config.checkpoint)
    print(f"scoring {checkpoint.name} on {', '.join(config.tasks or ())}", flush=True)
    with Progress("score", 0, "request") as progress, as_if_alone(config.score.threads):
        model = checkpoint.model()
        model.to(config.score.device)  # type: ignore[arg-type]
        tasks = _scored(config, checkpoint, model, progress)
    found = provenance()
    scores = Scores(
        tasks=tasks,
        checkpoint=checkpoint.name,
        architecture=checkpoint.architecture,
        parameters=sum(each.numel() for each in model.parameters()),
        context=checkpoint.context,
        dtype=str(model.dtype).removeprefix("torch."),
        note=note_on(checkpoint),
        trained=dict(checkpoint.trained or {}),
        limit=config.score.limit,
        batch=config.score.batch,
        device=config.score.device,
        seed=config.seed,
        config_hash=run_id(config),
        **found | {"versions": found["versions"] | {"lm-eval": metadata.version("lm-eval")}},
    )
    return Measured(scores.to_json())


def _scored(
    config: ScoreTask, checkpoint: Checkpoint, model: PreTrainedModel, progress: Progress
) -> dict[str, Scored]:
    """The scores by task."""
    chosen, settings = choose(config, checkpoint), config.score
    scoring = Scoring(model, settings.limit, settings.batch, progress)
    scored = {
        task.name: score_held_out(task, checkpoint, dataset, scoring) for task, dataset in chosen.held_out
    }
    if chosen.benchmarks:
        from gradwire.harness.studies.score.likelihood import score

        scored |= score(chosen.benchmarks, chosen.data, checkpoint.tokenizer(), scoring)
    return {name: replace(found, data=chosen.contents()[name]) for name, found in scored.items()}
