"""Small records as a run writes them, numbers that are not finite among them."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import yaml

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.attempts import FILE, Attempts
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.summary import Summary

CONFIG: dict[str, Any] = {
    "task": {"name": "train"},
    "size": {"name": "tiny", "layers": 2},
    "seed": 3,
    "codec": {"name": "dynamiq", "bits": 5.0},
    "topology": {"name": "ring"},
    "parallel": {"name": "ddp"},
    "cluster": {"name": "local", "workers": 2},
    "network": {"name": "paced", "rate_mbit": 200.0},
    "dataset": {"name": "text", "path": f"{Path.home()}/texts"},
    "train": {"lr": 1e-5, "steps": 6},
    "tracking": {
        "name": "wandb",
        "project": "gradwire",
        "entity": None,
        "mode": "offline",
        "group": "demo-tiny",
        "tags": ["a", "b"],
    },
}

SUMMARY = Summary(
    metric="perplexity",
    final_metric=math.nan,
    tta={
        "20.5": {"train_time_s": math.inf, "step": None, "stays": None},
        "300": {"train_time_s": 0.5, "step": 2, "stays": True},
    },
    vnmse_mean=0.25,
    clock="simulated",
    train_time_s=1.5,
    wall_time_s=2.5,
    rounds_per_second=4.0,
    figures={"compute_s": 0.125, "compression_s": 0.0625, "exposed_comm_s": 0.03125, "other_s": 0.0},
    bytes_sent_per_rank=[100, 101],
    bytes_by_phase={"metadata": 1, "reduce_scatter": 200},
    wire_bits_per_coordinate=None,
    seed=3,
    steps=6,
    workers=2,
    kernel_backend="default",
    config_hash="0123456789ab",
    code_hash="ba9876543210",
    commit="89abcdef",
    dirty=True,
    versions={"torch": "2.13.0"},
    machine={"processor": "2 cores", "gpus": [], "cores": 2},
)


def step_row(step: int) -> dict[str, Any]:
    """One row of `steps.jsonl`; every second step is measured."""
    row: dict[str, Any] = {
        "step": step,
        "train_time_s": (step + 1) / 4,
        "step_time_s": 0.25,
        "loss": math.inf if step == 3 else 6.0 - step / 7,
        "grad_norm": math.nan if step == 4 else 1 / 3,
        "skipped": step == 3,
        "measured": step % 2 == 0,
        "wire_bits_per_coordinate": None,
        "codec/bits": 5,
    }
    return row | ({"vnmse": 0.25} if step % 2 == 0 else {})


def eval_row(step: int) -> dict[str, Any]:
    """One row of `evals.jsonl`."""
    return {"step": step, "train_time_s": step / 4, "loss": 6.0, "perplexity": math.exp(6.0 - step / 9)}


def append(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with (directory / name).open("a") as file:
        file.write("".join(dumps(row) + "\n" for row in rows))


def draw(path: Path, width: int = 2, height: int = 3) -> bytes:
    """Writes a picture in one colour, with this size, true or not, in its header; returns its bytes."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\7\7" * 3)),
        (b"IEND", b""),
    ]
    framed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(framed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


def begin(directory: Path, attempts: int = 1, **tracking: Any) -> Path:
    """A record without rows, `attempts` of the run begun."""
    directory.mkdir(parents=True)
    config = CONFIG | {"tracking": CONFIG["tracking"] | tracking}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    known = Attempts(SUMMARY.config_hash, [{"from_step": 0, "code_hash": "c", "torch": "2"}] * attempts)
    (directory / FILE).write_text(dumps(vars(known)))
    return directory


def write(directory: Path, steps: int = 6, **tracking: Any) -> Path:
    """A finished record."""
    begin(directory, **tracking)
    append(directory, "steps.jsonl", [step_row(step) for step in range(steps)])
    append(directory, "evals.jsonl", [eval_row(step) for step in range(2, steps + 1, 2)])
    (directory / "summary.json").write_text(SUMMARY.to_json())
    mark_done(directory)
    return directory
