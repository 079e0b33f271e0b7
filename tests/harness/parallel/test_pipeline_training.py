"""Training in stages is training as one process: the losses of many steps, by either optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_jobs import tiny_run, train_all_virtually

from gradwire.harness.record.runs import load_run

STEPS = 20
SMALL = (
    *("cluster=virtual", "codec=fp32", "model.num_layers=4", "model.dropout=0", "train.clip_norm=0.5"),
    *("model.hidden_size=16", "model.intermediate_size=32", "dataset.sequence_length=16"),
    *(f"train.steps={STEPS}", f"eval.every={STEPS}", "eval.max_sequences=8", "train.log_every=1"),
    *("train.save_checkpoint=false", "measure.vnmse_every=0", "measure.trace=false"),
)
RATES = {"sgd": 0.3, "adamw": 0.003}


def losses(directory: Path, optimizer: str, *overrides: str) -> list[float]:
    """The losses of the steps, and that of the held-out split in the end."""
    chosen = (f"train.optimizer={optimizer}", f"train.lr={RATES[optimizer]}")
    if optimizer == "sgd":
        chosen += ("train.momentum=0", "train.weight_decay=0")
    train_all_virtually(tiny_run(*SMALL, *chosen, *overrides), str(directory))
    record = load_run(directory)
    return [row["loss"] for row in record.steps] + [record.evals[-1]["loss"]]


@pytest.mark.parametrize(
    ("stages", "schedule", "replicas", "model", "tied", "optimizer"),
    [
        (2, "1f1b", 1, "gpt2", True, "sgd"),
        (4, "gpipe", 2, "gpt2", False, "sgd"),
        (4, "1f1b", 2, "llama1b", True, "sgd"),
        (2, "gpipe", 2, "bert_large", True, "adamw"),
        (4, "1f1b", 1, "llama1b", False, "adamw"),
        (2, "gpipe", 1, "gpt2", False, "adamw"),
    ],
)
def test_losses_are_those_of_one_process(
    stages: int, schedule: str, replicas: int, model: str, tied: bool, optimizer: str, tmp_path: Path
) -> None:
    """Each value of each factor meets each of every other; one process is data parallelism whose workers are
    the replicas."""
    # 1F1B has to be filled; otherwise two micro-batches do.
    accumulation = stages if schedule == "1f1b" else 2
    given = (f"model={model}", f"model.tie_embeddings={str(tied).lower()}")
    given += (f"train.accumulation={accumulation}",)
    expected = losses(tmp_path / "ddp", optimizer, *given, f"cluster.workers={replicas}")
    pipeline = ("parallel=pipeline", f"parallel.stages={stages}", f"parallel.schedule={schedule}")
    workers = f"cluster.workers={stages * replicas}"
    found = losses(tmp_path / "pipeline", optimizer, *given, *pipeline, workers)
    assert found == pytest.approx(expected, abs={"sgd": 1e-6, "adamw": 1e-5}[optimizer])
    assert expected[STEPS - 1] < expected[0] - 0.1
    assert len(found) == STEPS + 1
