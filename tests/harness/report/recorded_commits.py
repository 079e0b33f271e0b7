"""The commits that records name, and those that git knows."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
RESULTS, GOLDEN = ROOT / "results", ROOT / "tests" / "golden"
SWEEP = "sweep.json"
LOST = RESULTS / "lost_commits.csv"

GENERATED = re.compile(r"<!-- evaluations, made by task=report -->.*?<!-- end of evaluations -->", re.DOTALL)
"""The part of a page that repeats what is in records."""

_COMMIT = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])(?:[0-9a-f]{7}|[0-9a-f]{40})\b")
"""A commit in a text: whole or its first seven digits; ids of runs and hashes of sources have twelve."""


class Named(NamedTuple):
    """A commit, and the record that names it: a file's path in the repository."""

    record: str
    commit: str


class NoHistoryError(Exception):
    """The history cannot be read; the text says why."""


class History:
    """The commits from which HEAD follows."""

    def __init__(self, commits: list[str]) -> None:
        self._commits = sorted(commits)

    @classmethod
    def of(cls, repository: Path) -> History:
        """The whole history of a repository. Raises NoHistoryError where it is not there."""
        if _git(repository, "rev-parse", "--is-shallow-repository") == "true":
            raise NoHistoryError("the clone is shallow: git fetch --unshallow")
        return cls(_git(repository, "rev-list", "HEAD").splitlines())

    def has(self, commit: str) -> bool:
        """True if a commit, given by its name or its first digits, is in it."""
        place = bisect_left(self._commits, commit)
        return place < len(self._commits) and self._commits[place].startswith(commit)


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise NoHistoryError("git is not installed") from None
    if done.returncode:
        raise NoHistoryError((done.stderr.strip().splitlines() or [f"git {arguments[0]} failed"])[-1])
    return done.stdout.strip()


def named_commits() -> list[Named]:
    """Every commit that a record names, each once for each file: sweeps, other JSON, pages, golden runs."""
    found = [named for folder in (RESULTS, GOLDEN) for named in _in_folder(folder)]
    return list(dict.fromkeys(found))


def _in_folder(folder: Path) -> Iterator[Named]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.name.endswith(".json.gz") and not any((up / SWEEP).is_file() for up in path.parents):
            content = json.loads(gzip.decompress(path.read_bytes()))
            yield from (Named(name, commit) for commit in _in_json(content))
        elif path.suffix == ".json":
            yield from (Named(name, commit) for commit in _in_json(json.loads(path.read_text())))
        elif path.suffix in (".md", ".txt") and path.name != "tables.txt":
            yield from (Named(name, commit) for commit in commits_in_text(path.read_text()))


def _in_json(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "commit" and isinstance(item, str):
                yield item
            else:
                yield from _in_json(item)
    elif isinstance(value, list):
        for item in value:
            yield from _in_json(item)


def commits_in_text(text: str) -> list[str]:
    """The commits that a page names outside of its generated part."""
    return _COMMIT.findall(GENERATED.sub("", text))


def lost_commits(path: Path = LOST) -> dict[Named, str]:
    """The commits that are known to be gone, each with the reason; the record is to be made anew."""
    with path.open(newline="") as file:
        return {Named(row["record"], row["commit"]): row["why"] for row in csv.DictReader(file)}


def faults(named: list[Named], lost: dict[Named, str], history: History) -> list[str]:
    """A line for each commit that is not as the table says; the table may only shrink."""
    lines = [
        f"{each.record}: commit {each.commit} is not in the history: record it anew"
        for each in named
        if each not in lost and not history.has(each.commit)
    ]
    for each, why in lost.items():
        if not why:
            lines.append(f"{LOST.name}: {each.record}: no reason for {each.commit}")
        if each not in named:
            lines.append(f"{LOST.name}: {each.record} no longer names {each.commit}: remove the line")
        elif history.has(each.commit):
            lines.append(f"{LOST.name}: {each.commit} is in the history: remove the line of {each.record}")
    return lines
