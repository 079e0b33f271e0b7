"""The records that two runs of the same settings have in common even if one was disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import restored
from gradwire.harness.trainer.summarize import OBSERVED

CLOCKS = frozenset(
    {
        "train_time_s",
        "wall_time_s",
        "step_time_s",
        "tokens_per_s",
        "compute_s",
        "compression_s",
        "exposed_comm_s",
        "other_s",
        "comm_s",
        "overlap_s",
        "wait_s",
        "osf",
        *OBSERVED,
    }
)
"""The keys that may differ."""

COUNTS = ("final_metric", "vnmse_mean", "bytes_sent_per_rank", "bytes_by_phase", "steps", "layout_hash")


def loads(text: str) -> Any:
    """The value of a record's JSON, numbers that are not finite among them."""
    return restored(json.loads(text))


def outcome(directory: Path) -> dict[str, Any]:
    """All that a finished run recorded but its times, and the bytes of its weights."""
    assert (directory / "DONE").exists(), sorted(path.name for path in directory.iterdir())
    found: dict[str, Any] = {"weights": (directory / "checkpoint" / "model.safetensors").read_bytes()}
    for name in ("steps.jsonl", "evals.jsonl"):
        rows = [loads(line) for line in (directory / name).read_text().splitlines()]
        found[name] = [{key: value for key, value in row.items() if key not in CLOCKS} for row in rows]
    summary = json.loads((directory / "summary.json").read_text())
    return found | {name: summary[name] for name in COUNTS}
