"""Reading a run's directory back.

A run's directory holds `config.yaml` (resolved), `steps.jsonl` and `evals.jsonl` (one JSON object per
training step and per evaluation), and, once it ended, `summary.json` with the marker `DONE`, or `FAILED`
with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from omegaconf import OmegaConf

from gradwire.harness.measure.accuracy import Evaluation
from gradwire.harness.record.rows import read_rows
from gradwire.harness.record.summary import Clock, Summary

Status = Literal["done", "failed", "unfinished"]


@dataclass(frozen=True)
class Run:
    """One run as its files tell it; `summary` is there if, and only if, it is done."""

    folder: Path
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    status: Status
    summary: Summary | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The directory's name below the sweep's, enough to find it."""
        return "/".join(self.folder.parts[-2:])

    @property
    def done(self) -> Summary:
        """The summary of a run known to be done."""
        assert self.summary is not None, f"{self.name} is {self.status}"
        return self.summary

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if seed is not None or self.summary is None else self.summary.seed

    @property
    def clock(self) -> Clock:
        return self.done.clock

    def choice(self, group: str) -> str | None:
        """The choice made for a config group: its `name`, or the value itself where it is no mapping."""
        value = self.config.get(group)
        if isinstance(value, Mapping):
            value = value.get("name")
        return None if value is None else str(value)

    @property
    def codec(self) -> str:
        return self.choice("codec") or "unknown"

    def curve(self, metric: str) -> list[Evaluation]:
        """The evaluations in order of steps; raises ValueError for a metric that was not evaluated."""
        if self.evals and metric not in self.evals[0]:
            known = ", ".join(sorted(self.evals[0]))
            raise ValueError(f"{self.name}: no metric {metric!r} in evals.jsonl, which has {known}")
        rows = sorted(self.evals, key=lambda row: row["step"])
        return [Evaluation(row["step"], row["train_time_s"], row[metric]) for row in rows]


def load_run(folder: str | Path) -> Run:
    """Read one run; `DONE` wins over a `FAILED` left by an earlier attempt.

    Raises ValueError when `folder` is no run directory, or a file in it cannot be read.
    """
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is no run directory: it has no config.yaml")
    loaded = OmegaConf.load(folder / "config.yaml")
    config = cast(dict[str, Any], OmegaConf.to_container(loaded, resolve=True))
    steps, evals = read_rows(folder / "steps.jsonl"), read_rows(folder / "evals.jsonl")
    if (folder / "DONE").exists() and (folder / "summary.json").is_file():
        try:
            summary = Summary.from_json((folder / "summary.json").read_text())
        except ValueError as error:
            raise ValueError(f"{folder / 'summary.json'}: {error}") from error
        return Run(folder, config, steps, evals, "done", summary)
    if (folder / "FAILED").exists():
        reason = (folder / "FAILED").read_text().strip()
        return Run(folder, config, steps, evals, "failed", reason=reason or "no reason recorded")
    last = steps[-1]["step"] if steps else "none"
    return Run(folder, config, steps, evals, "unfinished", reason=f"last recorded step: {last}")


def find_runs(roots: Iterable[str | Path]) -> list[Path]:
    """Every run directory at or below `roots`, in order of path; a root without any is returned itself.

    Hidden folders and those inside of a run are skipped: other tools keep a config.yaml there too.
    """
    found: dict[Path, None] = {}
    for root in map(Path, roots):
        folders = {path.parent.relative_to(root) for path in root.rglob("config.yaml")}
        visible = [
            root / folder
            for folder in sorted(folders)
            if not any(part.startswith(".") for part in folder.parts) and folders.isdisjoint(folder.parents)
        ]
        found.update(dict.fromkeys(visible or [root]))
    return list(found)
