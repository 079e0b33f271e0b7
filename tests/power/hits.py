"""A plug-in of pytest that finds which tests execute which faults, and that runs chosen tests.

    pytest -p power.hits --hits FOLDER        writes a line of JSON for each test that passed: its faults
    pytest -p power.hits --chosen FILE        runs the tests named in FILE, in that order, and no others

Sources marked by `python_faults.mark` call `__gradwire_hit__(number)`: it sets a byte of memory that the
pytest process shares with all processes it starts. The bytes are read and cleared at the end of each test.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest

VARIABLE = "GRADWIRE_HITS"
"""The file of bytes, one for each fault."""

SIZE = 4096

MARKER = f"""
import builtins, mmap, os
_hits = bytearray({SIZE})
def _attach(path):
    global _hits
    with open(path, "r+b") as file:
        _hits = mmap.mmap(file.fileno(), 0)
def _hit(number):
    _hits[number] = 1
builtins.__gradwire_hit__ = _hit
builtins.__gradwire_attach__ = _attach
if os.environ.get("{VARIABLE}"):
    _attach(os.environ["{VARIABLE}"])
"""
"""The code in sitecustomize.py that every Python process executes first when hits are recorded."""


class Hits:
    """Records which faults' statements each test has executed."""

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.bytes"
        path.write_bytes(bytes(SIZE))
        os.environ[VARIABLE] = str(path)
        __gradwire_attach__(path)  # type: ignore[name-defined]  # noqa: F821
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 0)
        self._lines = (folder / f"{name}.jsonl").open("w")
        self._passed = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._passed = True
        self._passed &= report.outcome == "passed"
        if report.when == "teardown":
            if self._passed:
                found = [number for number, value in enumerate(self._bytes[:]) if value]
                print(json.dumps([report.nodeid, found]), file=self._lines, flush=True)
            self._bytes[:] = bytes(SIZE)


class Chosen:
    """Runs the tests of a file's lines in their order."""

    def __init__(self, path: Path) -> None:
        self._order = {name: place for place, name in enumerate(path.read_text().splitlines())}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hits", metavar="FOLDER")
    parser.addoption("--chosen", metavar="FILE")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if (folder := config.getoption("hits")) and (worker or not config.getoption("numprocesses", None)):
        name = worker["workerid"] if worker else "alone"
        config.pluginmanager.register(Hits(Path(folder), name))
    if path := config.getoption("chosen"):
        config.pluginmanager.register(Chosen(Path(path)))
