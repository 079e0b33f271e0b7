"""The messages to `view.py`: one that opens a wandb run, and one on how the run has ended."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import UnusableFileError, read_bytes
from gradwire.harness.network.configured import rate_text
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.busy import BUSY, busy_run
from gradwire.harness.record.directory import PLOTS, is_done
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.timing.measure.metrics import kind_of
from gradwire.harness.tracking.settings import choose_mode
from gradwire.harness.tracking.tables import tables

INIT_S = 30
"""Seconds in which the server must answer; the connection is made during the training."""

QUIET = {
    "silent": True,
    "console": "off",
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "x_save_requirements": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "label_disable": True,
    "host": "",
    "program": "run.py",
    "x_executable": "python",
    "symlink": False,
    "use_dot_wandb": False,
    "init_timeout": INIT_S,
    "login_timeout": INIT_S,
    "finish_timeout_raises": True,
}
"""wandb's settings: no output, no code, nothing about the machine or its user, because the record contains
everything needed."""


AXES = {"train": "step", "eval": "train_time_s"}
"""The x-axis for the rows of each file: evaluations are plotted over the training clock, so that the charts
of a sweep's runs show their times to accuracy."""

GROUPS = ("task", "size", "codec", "topology", "parallel")
"""The configuration groups whose choices become tags of a run, followed by the network's label."""

LONGEST_TAG = 64
"""The longest tag that wandb accepts, in characters."""

PLOT, SIGNATURE = "-print.png", b"\x89PNG\r\n\x1a\n"
MOST_PIXELS = 2**25
"""The largest number of pixels of a picture that is shown; plots made here have a twentieth of it."""


def opening(
    config: Mapping[str, Any], tracking: Mapping[str, Any], directory: Path, wandb_id: str, finish_s: float
) -> dict[str, Any]:
    """The message that opens the wandb run `wandb_id` of the record in `directory`, whose resolved config is
    given.

    `finish_s` is the time limit in seconds for uploading the last rows; 0 means none.
    """
    folder = directory.absolute()
    init = {
        "id": wandb_id,
        "name": directory.resolve().name,
        "entity": tracking["entity"],
        "project": tracking["project"],
        "group": tracking["group"],
        "tags": distinct([*tags(config), *tracking["tags"]]) or None,
        "job_type": config["task"]["name"],
        "mode": choose_mode(tracking["mode"]),
        "dir": str(folder),
        "config": without_home(config),
        "reinit": "create_new",
    }
    return {
        "init": init,
        "settings": QUIET | {"finish_timeout": finish_s},
        "may_be_offline": tracking["mode"] == "auto",
        "files": {"train": str(folder / "steps.jsonl"), "eval": str(folder / "evals.jsonl")},
        "axes": AXES,
        "way_out": way_out(directory),
    }


def tags(config: Mapping[str, Any]) -> list[str]:
    """The choices of a configuration that users filter runs by, as written on the command line, and the label
    of its times with its links: `train`, `tiny`, `dynamiq`, `ring`, `ddp`, `emulated 200 Mbit/s`."""
    groups = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    found = [str(groups[key]["name"]) for key in GROUPS if groups.get(key, {}).get("name") is not None]
    network = groups.get("network")
    if network is not None:
        cluster = groups.get("cluster", {})
        share_device = cluster.get("share_device") is True
        links: list[str] = [kind_of(cluster.get("name"), network.get("name"), share_device=share_device)]
        if share_device:
            links.append("shared device")
        if network.get("preset", "custom") != "custom":
            links.append(str(network["preset"]))
        if isinstance(network.get("rate_mbit"), int | float):
            links.append(rate_text(network["rate_mbit"]))
        found.append(" ".join(links))
    return distinct(found)


def distinct(found: Iterable[str]) -> list[str]:
    """Tags as wandb accepts them: each once, and none too long."""
    return list(dict.fromkeys(tag[:LONGEST_TAG] for tag in found if tag))


def way_out(directory: Path) -> str:
    """The instructions for creating a missing view."""
    return f"task=sync run={directory} shows the record"


def environment(directory: Path) -> dict[str, str]:
    """The process's environment variables: wandb's files stay in the run directory, and it sends no error
    reports."""
    folder = directory.absolute() / "wandb"
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return inherited | {
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_ERROR_REPORTING": "false",
    }


def ending(directory: Path) -> dict[str, Any]:
    """The message on how the run in `directory` has ended; the exit code is 0 if and only if the run is
    done.
    """
    try:
        run = load_run(directory)
    except ValueError as error:  # it ended before it had a record, or its files are damaged
        summary = {"status": "unreadable", "reason": str(error)}
        return {"exit_code": int(not is_done(directory)), "summary": without_home(summary)}
    summary = {"status": run.status} | ({"reason": run.reason} if run.reason else {})
    if run.summary is not None:
        busy = busy_run(run)
        summary |= {BUSY: busy} if busy else {}
        summary |= json.loads(run.summary.to_json())  # wandb would drop a NaN, and keeps the text "nan"
    done = run.status == "done"
    content = {
        "tables": tables(run),
        "plots": plots(directory) if done else {},
        "summary": without_home(summary),
    }
    return {"exit_code": int(not done), **content}


def plots(directory: Path, pattern: str = PLOTS) -> dict[str, str]:
    """Name to file of the printable plots in the folders of a record that match a `pattern`.

    Files that are not pictures, do not belong to the record, or are too large are left out; users may have
    put them there.
    """
    found = [path for path in sorted(directory.glob(f"{pattern}/*{PLOT}")) if _is_plot(path, directory)]
    names = [path.relative_to(directory).as_posix().removesuffix(PLOT) for path in found]
    return {
        name.removeprefix(f"{PLOTS}/"): str(path.absolute()) for name, path in zip(names, found, strict=True)
    }


def _is_plot(path: Path, directory: Path) -> bool:
    try:
        content = read_bytes(path, remedy=REMEDY, inside=directory)
    except UnusableFileError:
        return False
    width, height = struct.unpack(">II", content[16:24].ljust(8, b"\0"))  # the first part of every PNG
    return content.startswith(SIGNATURE) and 0 < width * height <= MOST_PIXELS


def new_id(directory: Path) -> str:
    """A wandb id, `<run id>-<attempt>-<4 digits>`; it is random so that the same run on another machine is
    another wandb run."""
    return f"{_attempt(directory)}-{secrets.token_hex(2)}"


def last_id(directory: Path, attempt: str | None = None) -> str:
    """The id under which the last attempt is already shown, so that it is replaced; otherwise a new one.

    The id begins with `attempt`, which must be given if `directory` is not a run's.
    """
    attempt = attempt or _attempt(directory)
    shown = re.compile(rf"(?:offline-)?run-(\d+_\d+)-({attempt}-[0-9a-f]{{4}})(?:-\d+)?")
    found = [shown.fullmatch(path.name) for path in (directory / "wandb").glob("*run-*")]
    latest = max((match.groups() for match in found if match), default=None)
    return latest[1] if latest else f"{attempt}-{secrets.token_hex(2)}"


def without_home(value: Any) -> Any:
    """Returns `value` with `~` for the home directory, whose name contains the user's."""
    if isinstance(value, str):
        return value.replace(f"{Path.home()}/", "~/")
    if isinstance(value, Mapping):
        return {key: without_home(item) for key, item in value.items()}
    return [without_home(item) for item in value] if isinstance(value, list | tuple) else value


def _attempt(directory: Path) -> str:
    """Returns `<run id>-<attempt>`; old records have no file of attempts."""
    known = Attempts.read(directory)
    if known is not None:
        return f"{known.config_hash}-{len(known.attempts)}"
    return f"{hashlib.sha256((directory / 'config.yaml').read_bytes()).hexdigest()[:12]}-1"
