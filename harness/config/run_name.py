"""The runs in `outputs/`: their names and directories, and examples of values for a task's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from gradwire.codecs.fields import Rule, rules_of
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.files.reading import printable
from gradwire.harness.record.directory import CONFIG, GRADIENTS, WEIGHTS, is_done
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.timing.trace.files import FOLDER as TRACES
from gradwire.harness.trainer.settings import RunConfig

OUTPUTS = Path("outputs")

MOST_NAME = 200
"""Characters of the name of a run's directory; file systems take 255 bytes."""


def run_name(config: RecordedConfig) -> str:
    """A directory name that distinguishes runs: `<model>-<codec>[-<bits>]-<topology>-s<seed>-<id>`, or the
    task's own name and the id."""
    if isinstance(config, RunConfig) and not TASKS[config.task.name].is_study:
        chosen = f"{config.model.name}-{codec_name(config.codec)}-{config.topology.name}-s{config.seed}"
    else:
        chosen = TASKS[config.task.name].load().name(config)
    # A plug-in's colon is replaced, because it has a special meaning in many paths.
    name = f"{chosen.replace(':', '.')}-{run_id(config)}"
    if name != printable(name, MOST_NAME) or name.startswith((".", "-")) or "/" in name:
        raise ConfigError(
            f"{printable(name)!r} cannot name a run's folder: it must be one name of at most {MOST_NAME} "
            "characters that show, without a slash; set model.name= (or rename the file of gradients)"
        )
    return name


def codec_name(codec: Mapping[str, Any]) -> str:
    """The codec with its bits, if it has any."""
    bits = codec.get("bits")
    return str(codec["name"]) if not isinstance(bits, (int, float)) else f"{codec['name']}-{bits:g}"


def run_directory(config: RecordedConfig, override: str | Path | None = None) -> Path:
    """The directory of a run's files: `override`, else `outputs/<run name>` below the working directory."""
    return Path(override) if override is not None else OUTPUTS / run_name(config)


MOST_SEARCHED = 500
"""The largest number of runs that are searched for an example."""

NEED = {
    "gradients": "gradients=<file with gradients>",
    "checkpoint": "checkpoint=<a finished run, a Hugging Face folder or a name on the hub>",
    "run": "run=<a run's directory>",
    "runs": "runs=[<a run's directory, name or id>,<another>]",
}

KEEP = {
    "gradients": "no run in outputs/ keeps some: measure.save_gradients_at=[<step>] of a training run does",
    "checkpoint": "outputs/ has no finished run with weights",
    "run": "outputs/ has no such run",
    "runs": "outputs/ has no finished run",
}
"""The reason why there is no example, by the missing file."""

GIVES: dict[str, Callable[[Path], Path | None]] = {
    "gradients": lambda run: min((run / GRADIENTS).glob("step*.safetensors"), default=None),
    "checkpoint": lambda run: run if is_done(run) and (run / WEIGHTS).is_dir() else None,
    "run": lambda run: run if (run / TRACES).is_dir() else None,
    "runs": lambda run: run if is_done(run) else None,
    "finished": lambda run: run if is_done(run) else None,
}
"""Functions that find a value for a task's setting in a run's directory; None if there is none."""


def what_to_give(key: str, task: str) -> str:
    """Advice to add `key` of `task`, with an example from the newest runs in `outputs/`."""
    if key not in NEED:
        rule = rules_of(cast(type, TASKS[task].config)).get(key)
        choices = rule.choices if isinstance(rule, Rule) and rule.choices else ("<value>",)
        return f"add {' or '.join(f'{key}={choice}' for choice in choices)}"
    gives = GIVES["finished" if (key, task) == ("run", "retime") else key]
    runs = [path for path in OUTPUTS.glob("*") if (path / CONFIG).is_file()]
    runs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    found = next(filter(None, map(gives, islice(runs, MOST_SEARCHED))), None)
    return f"add {NEED[key]}" + (f", e.g. {key}={found}" if found else f"; {KEEP[key]}")
