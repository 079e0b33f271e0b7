"""Reads a run's directory back.

A run's directory holds `config.yaml` (resolved), `steps.jsonl` and `evals.jsonl` (one JSON object per
training step and per evaluation). Once the run has ended, it holds `summary.json` with the marker `DONE`, or
`FAILED` with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.directory import (
    CONFIG,
    DIVERGED,
    DONE,
    EVALUATIONS,
    FAILED,
    STEPS,
    SUMMARY,
    failure_in,
)
from gradwire.harness.record.row_file import evaluation_of_run, steps_of_run, whole_rows
from gradwire.harness.record.seal import check_done
from gradwire.harness.record.summary import REMEDY, Clock, Summary
from gradwire.harness.timing.measure.metric import Kind
from gradwire.harness.timing.measure.metrics import kind_of

Status = Literal["done", "failed", "unfinished"]

MOST_WORKERS = 100_000
"""The largest number of ranks of a run that is read."""

MOST_FOLDERS = 100_000
"""The largest number of folders that are searched for runs."""

MOST_SHOWN = 120
"""The largest number of characters of a reason or a command in a refusal."""

Setting = TypeVar("Setting")


@dataclass(frozen=True)
class Run:
    """One run as read from its files; `summary` is present if and only if the run is done."""

    folder: Path
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    status: Status
    summary: Summary | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The directory's name relative to the sweep's, which is enough to find it."""
        return "/".join(self.folder.parts[-2:])

    @property
    def done(self) -> Summary:
        """The summary of a run that must be done."""
        assert self.summary is not None, f"{self.name} is {self.status}"
        return self.summary

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if seed is not None or self.summary is None else self.summary.seed

    @property
    def clock(self) -> Clock:
        return self.done.clock

    @property
    def kind(self) -> Kind:
        """The kind of its times: measured, emulated or modelled."""
        return kind_of(self.choice("cluster"), self.choice("network"), share_device=self.shares_device)

    @property
    def shares_device(self) -> bool:
        """True if several of its ranks were on one GPU; earlier records do not say so."""
        cluster = self.config.get("cluster")
        return isinstance(cluster, Mapping) and cluster.get("share_device") is True

    @property
    def network(self) -> str:
        """Its links and the kind of its times, in words. Raises ValueError if the record's network is
        invalid."""
        return recorded_text(self.config.get("network"), self.kind)

    @property
    def diverged(self) -> bool:
        """True if training itself ended the run, which then failed."""
        return self.status == "failed" and self.reason.startswith(f"{DIVERGED} ")

    def choice(self, group: str) -> str | None:
        """The choice made for a config group: its `name`, or the value itself if it is not a mapping."""
        value = self.config.get(group)
        if isinstance(value, Mapping):
            value = value.get("name")
        return None if value is None else str(value)

    @property
    def codec(self) -> str:
        return self.choice("codec") or "unknown"

    def setting(self, key: str, kind: type[Setting]) -> Setting:
        """The value of a dotted key of the configuration. Raises ValueError if it is not of type `kind`."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            problem = f"has {key}={printable(str(value), 60)}, which is no {kind.__name__}"
            raise UnusableFileError(self.folder / CONFIG, problem, REMEDY)
        return value

    @property
    def workers(self) -> int:
        """The number of ranks. Raises ValueError if the configuration does not give it."""
        count = self.setting("cluster.workers", int)
        if not 1 <= count <= MOST_WORKERS:
            problem = f"has cluster.workers={count}, not from 1 to {MOST_WORKERS}"
            raise UnusableFileError(self.folder / CONFIG, problem, REMEDY)
        return count


def load_run(folder: str | Path) -> Run:
    """Reads one run; `DONE` wins over a `FAILED` left by an earlier attempt.

    Nothing in it is resolved, imported or run, and links are not followed. If the run is not done, rows from
    the first damaged one on are ignored. Raises ValueError in one line if `folder` is no run directory, or a
    file in it cannot be used.
    """
    folder = Path(folder)
    if not os.path.lexists(folder / CONFIG):
        problem = f"is not a run directory: it has no {CONFIG}" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {problem}")
    done = os.path.lexists(folder / DONE)
    if done:
        check_done(folder)
    config = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)
    train = config.get("train")
    from_zero = not isinstance(train, dict) or train.get("start_from") is None
    steps, lost_steps = whole_rows(folder / STEPS, steps_of_run(from_zero=from_zero), remedy=REMEDY)
    evals, lost_evals = whole_rows(folder / EVALUATIONS, evaluation_of_run, remedy=REMEDY)
    damage = lost_steps or lost_evals
    if done:
        if damage is not None:
            raise damage
        return Run(folder, config, steps, evals, "done", _summary(folder, steps))
    lost = f"; {damage.path.name} {damage.problem}" if damage is not None else ""
    if os.path.lexists(folder / FAILED):
        return Run(folder, config, steps, evals, "failed", reason=failure_in(folder) + lost)
    last = steps[-1]["step"] if steps else "none"
    return Run(folder, config, steps, evals, "unfinished", reason=f"last recorded step: {last}{lost}")


def _summary(folder: Path, steps: Sequence[Mapping[str, Any]]) -> Summary:
    """The summary of a run that is done, whose rows are given."""
    summary = Summary.read(folder / SUMMARY)
    if summary.steps != len(steps):
        problem = f"is of {summary.steps} steps, {STEPS} has {len(steps)}"
        raise UnusableFileError(folder / SUMMARY, problem, REMEDY)
    return summary


def not_finished(run: Run) -> str:
    """The reason why an unfinished run is refused, and how to finish it, to follow its name in a line."""
    attempts = Attempts.read(run.folder)
    command = None if attempts is None else attempts.command
    reason = printable(run.reason, MOST_SHOWN)
    if run.diverged:
        return f"is {run.status} ({reason}); choose a run that has finished"
    again = f": {printable(command, MOST_SHOWN)}" if command else ""
    return f"is {run.status} ({reason}); run the same command again to finish it{again}"


def find_runs(roots: Iterable[str | Path]) -> list[Path]:
    """Every run directory at or below `roots`, in order of path; a root without any is itself returned.

    Hidden folders and those inside a run are skipped, because other tools keep a config.yaml there, too.
    Links are not followed. Raises ValueError in one line for a root with more than `MOST_FOLDERS` folders.
    """
    found: dict[Path, None] = {}
    for root in map(Path, roots):
        found.update(dict.fromkeys(list(_runs_below(root)) or [root]))
    return list(found)


def _runs_below(root: Path) -> Iterator[Path]:
    for number, (folder, inner, files) in enumerate(os.walk(root)):
        if number == MOST_FOLDERS:
            raise ValueError(f"{root} has more than {MOST_FOLDERS} folders; name the folder that runs are in")
        if CONFIG in files:
            yield Path(folder)
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
