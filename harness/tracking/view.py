"""The process that shows one record in wandb: `python view.py`, controlled by standard input.

It is a separate process, so that wandb can neither break nor slow the training, and so that it can be killed
when it does not respond. If the run's own process is killed, the input ends without a message, and this
process shows the run as failed. It does not import gradwire, which would load torch again.

The input is one line of JSON, `messages.opening`, and, when the run has ended, a second one,
`messages.ending`. Until then it shows the record's rows as they are written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

POLL_S = 1.0
"""Seconds between two checks of the record."""

NICENESS = 5
"""This process's niceness: the training comes first when cores are scarce."""

UNREPORTED = {
    "exit_code": 1,
    "summary": {"status": "failed", "reason": "the run's process was killed"},
}
"""The ending used for a run whose ending was never reported."""


class Tail:
    """Reads the whole lines of a growing file."""

    def __init__(self, path: str) -> None:
        self._path, self._read, self._inode = path, 0, -1

    def lines(self) -> Iterator[str]:
        """The lines added since the last call, or all lines if the file was replaced or cut."""
        try:
            whole = self._read_on()
        except FileNotFoundError:
            return
        if whole:
            self._read += len(whole) + 1
            yield from whole.decode().split("\n")

    def _read_on(self) -> bytes:
        with open(self._path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._read:
                self._read, self._inode = 0, status.st_ino
            file.seek(self._read)
            return file.read().rpartition(b"\n")[0]


class EndingReader:
    """Reads the second line of the input, which arrives while the record is shown."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = UNREPORTED
        self._come = threading.Event()
        threading.Thread(target=self._await, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Returns true if the line has arrived, after waiting at most `seconds`."""
        return self._come.wait(seconds)

    def _await(self) -> None:
        line = sys.stdin.readline()
        with suppress(json.JSONDecodeError):  # cut off as its writer was killed
            self.content = json.loads(line)
        self._come.set()


class View:
    """One wandb run."""

    def __init__(self, opening: dict[str, Any]) -> None:
        import wandb

        self._wandb = wandb
        known = wandb.Settings.model_fields  # other versions have other settings
        settings = wandb.Settings(**{k: v for k, v in opening["settings"].items() if k in known})
        try:
            self._run = wandb.init(**opening["init"], settings=settings)
        except Exception:
            if not opening["may_be_offline"]:
                raise
            wandb.teardown()  # else the id would still be in use
            self._run = wandb.init(**opening["init"] | {"mode": "offline"}, settings=settings)
        self.offline = self._run.settings.mode == "offline"
        self.url = str(self._run.url)
        self.directory = Path(self._run.dir).parent
        self._tails = {name: Tail(path) for name, path in opening["files"].items()}
        for name, axis in opening["axes"].items():
            self._run.define_metric(f"{name}/*", step_metric=f"{name}/{axis}")

    def show_new_rows(self) -> None:
        """Sends one row of history for each new row of the record, with keys `<name>/<key>`."""
        for name, tail in self._tails.items():
            for line in tail.lines():
                row = json.loads(line)
                self._run.log({f"{name}/{key}": number(value) for key, value in row.items()})

    def end(self, ending: dict[str, Any]) -> None:
        """Sends the summary, the tables, the curves and the plots, and finishes; waits for the upload."""
        try:
            self._run.summary.update(ending["summary"])
            for name, table in ending.get("tables", {}).items():
                shown = self._wandb.Table(columns=table["columns"], data=table["rows"])
                self._run.log({f"tables/{name}": shown})
            for name, lines in ending.get("curves", {}).items():
                self._run.log({f"curves/{name}": self._wandb.plot.line_series(**lines)})
            for name, path in ending.get("plots", {}).items():
                self._run.log({f"plots/{name}": self._wandb.Image(path)})
        finally:
            self._run.finish(exit_code=ending["exit_code"])
            remove_empty_folders(self.directory.parent)


def remove_empty_folders(root: Path) -> None:
    """Removes empty folders that wandb has left below `root`. Its staged copies of tables stay, because the
    upload of an offline run needs them."""
    for folder, _, _ in os.walk(root, topdown=False):
        if os.path.basename(folder) != "files":  # which wandb looks for in a run's folder
            with suppress(OSError):  # it holds something
                os.rmdir(folder)


def number(value: Any) -> Any:
    """Converts the strings that records use for non-finite numbers to numbers."""
    return float(value) if value in ("inf", "-inf", "nan") else value


def main() -> int:
    """Shows a record until its run has ended; returns 1, after printing the reason, if it could not be
    shown.
    """
    output, errors = (os.fdopen(os.dup(stream), "w", buffering=1) for stream in (1, 2))
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what wandb prints would come between the lines of our own progress
        os.dup2(silence, stream)
    os.nice(NICENESS)
    for number in (signal.SIGTERM, signal.SIGUSR2):  # to a whole job: the run saves, and its end is reported
        signal.signal(number, signal.SIG_IGN)
    opening = json.loads(sys.stdin.readline())
    ending = EndingReader()
    try:
        _show(View(opening), ending, output)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"warning: not shown in wandb: {reason}; {opening['way_out']}", file=errors)
        return 1
    return 0


def _show(view: View, ending: EndingReader, output: TextIO) -> None:
    if not view.offline:
        print(f"wandb: {view.url}", file=output)
    while not ending.wait(POLL_S):
        view.show_new_rows()
    view.show_new_rows()
    view.end(ending.content)
    if view.offline:
        here = Path.cwd()
        below = view.directory.is_relative_to(here)
        folder = view.directory.relative_to(here) if below else view.directory
        print(f"wandb: offline run in {folder}; upload it with: wandb sync {folder}", file=output)


if __name__ == "__main__":
    sys.exit(main())
