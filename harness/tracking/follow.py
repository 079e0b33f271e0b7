"""Starts and ends the process that shows a run in wandb."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.harness.record.runs import load_run
from gradwire.harness.tracking.messages import (
    ending,
    environment,
    last_id,
    new_id,
    opening,
    way_out,
    without_home,
)
from gradwire.harness.tracking.settings import TrackingConfig, WandbConfig, choose_mode

VIEW = Path(__file__).with_name("view.py")

FINISH_S = 45.0
"""Seconds that a finished run waits for its last rows to be uploaded ..."""

PATIENCE_S = 120.0
"""... and for the process to end, before it is killed."""


@contextmanager
def tracked(tracking: TrackingConfig, settings: Mapping[str, Any], directory: Path) -> Iterator[None]:
    """Shows the run in this block in wandb if `tracking` says so; `settings` are all of the run's.

    `directory` is locked and prepared for this attempt. Rows that are already in its record are shown, too.
    Failures here do not end the run: they are reported in one line, and the record stays complete.
    """
    follower = _follower(tracking, settings, directory)
    try:
        yield
    finally:
        if follower is not None:
            follower.end(PATIENCE_S)


def upload_recorded(tracking: Mapping[str, Any], directory: Path) -> bool:
    """Shows the record in `directory`, complete or not, in wandb, replacing an earlier view.

    Returns whether that succeeded; if not, it prints the reason in a line. Raises ValueError if there is no
    record.
    """
    message = opening(load_run(directory).config, tracking, directory, last_id(directory), 0.0)
    return Follower(message, directory).end(None)


def show_content(
    tracking: Mapping[str, Any],
    config: Mapping[str, Any],
    directory: Path,
    content: Mapping[str, Any],
    attempt: str | None = None,
) -> bool:
    """Shows the `content` (summary, tables, curves, plots) of a record that is not a training run in wandb,
    replacing an earlier view whose id begins with `attempt` (None: the run's).

    Returns whether that succeeded; if not, it prints the reason in a line.
    """
    message = opening(config, tracking, directory, last_id(directory, attempt), 0.0)
    ended = {**content, "exit_code": 0, "summary": without_home(content["summary"])}
    return Follower(message, directory, ended).end(None)


class Follower:
    """The `view.py` process of one run, or of the content `ended`."""

    def __init__(
        self, message: Mapping[str, Any], directory: Path, ended: Mapping[str, Any] | None = None
    ) -> None:
        self._directory, self._ended = directory, ended
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(VIEW)],
            stdin=subprocess.PIPE,
            text=True,
            env=environment(directory),
            start_new_session=True,  # Ctrl-C is for the run, whose end it waits for
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def end(self, timeout_s: float | None) -> bool:
        """Sends the run's ending to the process and waits; returns whether everything could be shown."""
        code = None
        try:
            ended = self._ended or ending(self._directory)
            self._process.communicate(json.dumps(ended) + "\n", timeout=timeout_s)
            code = self._process.returncode
        except subprocess.TimeoutExpired:
            _warn(f"no answer within {timeout_s:g} s", self._directory)
        except Exception as error:
            _warn(error, self._directory)
        finally:
            self._process.kill()
            self._process.wait()
        if code is not None and code < 0:  # else it has spoken itself
            _warn(f"its process was killed by signal {-code}", self._directory)
        return code == 0


def _follower(tracking: TrackingConfig, settings: Mapping[str, Any], directory: Path) -> Follower | None:
    if not isinstance(tracking, WandbConfig) or choose_mode(tracking.mode) == "disabled":
        return None
    try:
        message = opening(settings, settings["tracking"], directory, new_id(directory), FINISH_S)
        return Follower(message, directory)
    except Exception as error:
        _warn(error, directory)
        return None


def _warn(reason: object, directory: Path) -> None:
    line = f"warning: not shown in wandb: {' '.join(str(reason).split())}; {way_out(directory)}"
    print(line, file=sys.stderr, flush=True)
