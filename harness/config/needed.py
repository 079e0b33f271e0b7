"""What to give for a key that a task needs, with an example among the runs below `outputs/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from gradwire.harness.record.directory import CONFIG, WEIGHTS, is_done
from gradwire.harness.record.saved_steps import GRADIENTS
from gradwire.harness.timing.trace.files import FOLDER as TRACES

OUTPUTS = Path("outputs")

MOST_LOOKED_AT = 500
"""Runs that are looked at for an example."""

NEED = {
    "gradients": "gradients=<file with gradients>",
    "checkpoint": "checkpoint=<a finished run, a Hugging Face folder or a name on the hub>",
    "run": "run=<a run's directory>",
}

KEEP = {
    "gradients": "no run in outputs/ keeps some: measure.save_gradients_at=[<step>] of a training run does",
    "checkpoint": "outputs/ has no finished run with weights",
    "run": "outputs/ has no such run",
}
"""What is missing where there is no example."""


def what_to_give(key: str, task: str) -> str:
    """What a user has to add for `key` of `task`, and what is there to be given."""
    if key not in NEED:
        return f"add {key}=<value>"
    look = {
        "gradients": _gradients,
        "checkpoint": _weights,
        "run": _traced if task != "retime" else _finished,
    }
    found = next(_newest(look[key]), None)
    return f"add {NEED[key]}" + (f", e.g. {key}={found}" if found else f"; {KEEP[key]}")


def _newest(look: Callable[[Path], Path | None]) -> Iterator[Path]:
    """What `look` finds in the runs, the newest first."""
    runs = [path for path in OUTPUTS.glob("*") if (path / CONFIG).is_file()]
    runs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    yield from filter(None, map(look, islice(runs, MOST_LOOKED_AT)))


def _gradients(run: Path) -> Path | None:
    return next(iter(sorted((run / GRADIENTS).glob("step*.safetensors"))), None)


def _weights(run: Path) -> Path | None:
    return run if is_done(run) and (run / WEIGHTS).is_dir() else None


def _finished(run: Path) -> Path | None:
    return run if is_done(run) else None


def _traced(run: Path) -> Path | None:
    return run if (run / TRACES).is_dir() else None
