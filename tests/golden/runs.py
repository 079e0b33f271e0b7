"""Runs golden cases in this process and on pool workers, and reads what is kept of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from cases import SHORT, Case
from pool import Workers
from recorded import CLOCKS
from safetensors import safe_open
from training_jobs import train_all_virtually, train_rank

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import task_of, validate, validate_any

Figures = dict[str, Any]
"""Figures by name, such as "step 3 loss"."""

STEP = ("loss", "lr", "grad_norm", "skipped", "vnmse", "bytes_sent")
EVALUATION = ("step", "loss", "perplexity", "accuracy", "matthews")
SUMMARY = ("final_metric", "vnmse_mean", "bytes_sent_per_rank", "bytes_by_phase", "layout_hash", "steps")
REPLAY = ("vnmse", "bytes_sent_per_rank", "wire_bits_by_phase", "super_group_errors", "logged")

MODEL = Path("checkpoint") / "model.safetensors"


def run_case(case: Case, folder: Path, workers: Workers) -> Figures:
    """Run a case in the new `folder`, with the sources of this process; its figures."""
    world = "local" if case.real else "virtual"
    config = validate(compose([*SHORT, f"cluster={world}", *case.overrides]))
    run, after = folder / "run", folder / "then"
    if case.real:
        workers(config.cluster.workers)(train_rank, config, str(run))
    else:
        for stop_after in (*case.stops, None):
            train_all_virtually(config, str(run), stop_after)
    if case.then:
        following = compose([override.format(run=run) for override in case.then])
        task = task_of(following).load()
        after.mkdir()
        assert task.run(validate_any(following), after) == 0
    return figures(case, folder)


def figures(case: Case, folder: Path) -> Figures:
    """All recorded figures of a case that ran in `folder`, with floats to their last bit."""
    found = run_figures(folder / "run", timed=case.timed)
    if case.then:
        after = folder / "then"
        of_task = (
            run_figures(after, timed=True) if (after / "steps.jsonl").exists() else replay_figures(after)
        )
        found |= {f"then {name}": value for name, value in of_task.items()}
    return found


def run_figures(run: Path, *, timed: bool) -> Figures:
    """The figures of training: its clock if it is given its times, and its weights if there are any."""
    assert (run / "DONE").exists(), f"{run} has not finished"
    clocks = CLOCKS - {"wall_time_s", "tokens_per_s"} if timed else frozenset()
    found: Figures = {}
    for row in _rows(run / "steps.jsonl"):
        kept = [key for key in row if key in STEP or key.startswith("codec/") or key in clocks]
        found |= {f"step {row['step']} {key}": row[key] for key in sorted(kept)}
    for number, row in enumerate(_rows(run / "evals.jsonl")):
        kept = [key for key in row if key in EVALUATION or key in clocks]
        found |= {f"evaluation {number} {key}": row[key] for key in sorted(kept)}
    found |= _chosen(run, SUMMARY)
    if (run / MODEL).exists():
        found["weights"] = _digest(run / MODEL)
    return found


def replay_figures(replay: Path) -> Figures:
    """The figures that a replay of saved gradients left."""
    assert (replay / "DONE").exists(), f"{replay} has not finished"
    return _chosen(replay, REPLAY)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _chosen(run: Path, names: tuple[str, ...]) -> Figures:
    summary = json.loads((run / "summary.json").read_text())
    return {name: summary[name] for name in names}


def _digest(path: Path) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of all tensors of a file."""
    digest = hashlib.sha256()
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name).contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest.hexdigest()
