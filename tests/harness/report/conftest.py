"""Folders of made-up but plausible runs, as a run writes them, and a folder of results."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_up_results import MADE_UP, write_results
from recorded import loads

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.summary import Summary
from gradwire.harness.report import evaluations

# codec -> wire bits; compute, compression, exposed communication, other in ms; vNMSE; harm to the final loss
CODECS: dict[str, tuple[float, float, float, float, float, float, float]] = {
    "bf16": (16.0, 690.0, 16.0, 610.0, 36.0, 2e-6, 0.0),
    "dynamiq": (5.1, 700.0, 30.0, 140.0, 30.0, 4e-3, 0.002),
    "mxfp8": (8.3, 700.0, 24.0, 290.0, 31.0, 1e-3, 0.001),
    "mxfp4": (4.3, 700.0, 22.0, 120.0, 30.0, 0.12, 0.035),
    "thc": (5.3, 705.0, 310.0, 130.0, 33.0, 0.08, 0.018),
    "omnireduce": (8.0, 700.0, 40.0, 300.0, 35.0, 0.3, 0.09),
    "native": (16.0, 690.0, 0.0, 600.0, 36.0, 2e-6, 0.0),
    "powersgd": (1.2, 700.0, 110.0, 60.0, 33.0, 0.45, 0.03),
}
STEPS, EVAL_EVERY, WORKERS, COORDINATES = 200, 10, 4, 250_000


class SyntheticRuns:
    """Writes and changes the folders of runs below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self, codec: str = "bf16", /, seed: int = 0, name: str = "", slower: float = 1.0, **changes: Any
    ) -> Path:
        """One finished run: `slower` stretches its step, `changes` replace entries of its config."""
        folder = self.root / (name or f"{codec}-seed{seed}")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(_config(codec, seed) | changes))
        steps, evals, summary = _records(codec, seed, slower)
        _write_rows(folder / "steps.jsonl", steps)
        _write_rows(folder / "evals.jsonl", evals)
        (folder / "summary.json").write_text(summary.to_json())
        mark_done(folder)
        return folder

    def change_summary(self, folder: Path, **changes: Any) -> None:
        path = folder / "summary.json"
        values = loads(path.read_text())
        path.write_text(dumps(values | changes))
        mark_done(folder)

    def write_steps(self, folder: Path, rows: list[dict[str, Any]]) -> None:
        """Replace the steps by as many as `rows`, which say what is not as in every step."""
        usual = {"loss": 1.0, "step_time_s": 1.0}
        times = [{"step": index, "train_time_s": 1.0 + index} for index in range(len(rows))]
        _write_rows(
            folder / "steps.jsonl", [time | usual | row for time, row in zip(times, rows, strict=True)]
        )
        self.change_summary(folder, steps=len(rows))

    def write_curve(
        self, folder: Path, metrics: list[float], every_s: float = 1.0, metric: str = "perplexity"
    ) -> None:
        """Replace the evaluations: one every 10 steps and `every_s` seconds, the first after 10 steps."""
        rows = []
        for index, value in enumerate(metrics, start=1):
            times = {"train_time_s": every_s * index, "wall_time_s": 2 * every_s * index}
            rows.append({"step": 10 * index, **times, "loss": 1.0, metric: value})
        _write_rows(folder / "evals.jsonl", rows)
        self.change_summary(folder, final_metric=metrics[-1], metric=metric)

    def fail(self, folder: Path, reason: str) -> Path:
        """Turn a finished run into one that failed."""
        (folder / "DONE").unlink()
        (folder / "summary.json").unlink()
        (folder / "FAILED").write_text(reason + "\n")
        return folder


@pytest.fixture
def runs(tmp_path: Path) -> SyntheticRuns:
    return SyntheticRuns(tmp_path / "runs")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, about which the made-up claims are made."""
    monkeypatch.setattr(evaluations, "CLAIMS", (MADE_UP,))
    return write_results(tmp_path / "results")


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(dumps(row) + "\n" for row in rows))


def _config(codec: str, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "codec": {"name": codec} | ({"bits": 5} if codec == "dynamiq" else {}),
        "model": {"name": "gpt2", "num_layers": 2},
        "dataset": {"name": "wikitext"},
        "topology": {"name": "ring"},
        "network": {"name": "shaped", "rate_mbit": 200},
        "cluster": {"name": "local", "workers": WORKERS, "timeout_s": 60 + seed},
        "train": {"steps": STEPS, "lr": 1e-3},
        "tracking": {"name": "wandb", "group": f"group-{codec}"},
        "output_dir": f"outputs/{codec}/{seed}",
    }


def _records(
    codec: str, seed: int, slower: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Summary]:
    bits, *parts_ms, vnmse, harm = CODECS[codec]
    noise = random.Random(f"{codec} {seed}")
    speed = slower * noise.uniform(0.97, 1.03) / 1e3
    parts = dict(
        zip(
            ("compute_s", "compression_s", "exposed_comm_s", "other_s"),
            (part * speed for part in parts_ms),
            strict=True,
        )
    )
    step_s, clock_s = sum(parts.values()), 0.0
    bytes_sent = int(bits * 2 * (WORKERS - 1) * COORDINATES / 8)
    steps, evals = [], []
    for step in range(STEPS):
        loss = 3.6 + harm + 6.6 * math.exp(-step / 28) + noise.gauss(0, 0.04)
        if step % EVAL_EVERY == 0:
            evals.append(_evaluation(step, clock_s, harm, noise))
        clock_s += step_s
        measured = step % 10 == 0
        row = {
            "step": step,
            "loss": loss,
            "train_time_s": clock_s,
            "step_time_s": step_s,
            "lr": 1e-3,
            "grad_norm": 1.0,
        }
        row |= {
            "skipped": False,
            "measured": measured,
            "bytes_sent": bytes_sent,
            "wire_bits_per_coordinate": bits,
        }
        row |= {key: value * noise.uniform(0.95, 1.1) for key, value in parts.items()}
        steps.append(row | ({"vnmse": vnmse * noise.lognormvariate(0, 0.15)} if measured else {}))
    evals.append(_evaluation(STEPS, clock_s, harm, noise))
    errors = [row["vnmse"] for row in steps if "vnmse" in row]
    summary = Summary(
        metric="perplexity",
        final_metric=evals[-1]["perplexity"],
        tta={},
        vnmse_mean=sum(errors) / len(errors),
        clock="wall",
        train_time_s=clock_s,
        wall_time_s=clock_s * 1.2,
        rounds_per_second=1 / step_s,
        figures=dict(parts),
        bytes_sent_per_rank=[bytes_sent * STEPS // WORKERS] * WORKERS,
        bytes_by_phase={"reduce_scatter": bytes_sent * STEPS // 2, "all_gather": bytes_sent * STEPS // 2},
        wire_bits_per_coordinate=bits,
        seed=seed,
        steps=STEPS,
        workers=WORKERS,
        kernel_backend="cpu",
        config_hash=f"{codec}{seed}",
        code_hash="0123abcd",
        commit="89abcdef",
        dirty=False,
        versions={"torch": "2.13.0"},
        machine={"processor": "16 cores", "gpus": []},
    )
    return steps, evals, summary


def _evaluation(step: int, clock_s: float, harm: float, noise: random.Random) -> dict[str, Any]:
    loss = 3.6 + harm + 6.6 * math.exp(-step / 28) + noise.gauss(0, 0.003)
    times = {"train_time_s": clock_s, "wall_time_s": clock_s * 1.2}
    return {"step": step, "loss": loss, "perplexity": math.exp(loss)} | times
