"""Every commit that a record names exists in the history, so that its sources can be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from recorded_commits import (
    GOLDEN,
    LOST,
    ROOT,
    History,
    Named,
    NoHistoryError,
    commits_in_text,
    faults,
    lost_commits,
    named_commits,
)

MOST_LOST = 4
"""Lines of the table today; it may only shrink."""


def test_every_recorded_commit_is_in_the_history() -> None:
    try:
        history = History.of(ROOT)
    except NoHistoryError as error:
        pytest.skip(f"no whole history here: {error}")
    assert faults(named_commits(), lost_commits(), history) == []


def test_the_table_of_lost_commits_only_shrinks() -> None:
    with LOST.open() as file:
        assert len(file.readlines()) - 1 == len(lost_commits()) <= MOST_LOST


def test_sweeps_pages_and_golden_records_are_asked() -> None:
    records = {each.record for each in named_commits()}
    assert sum(record.endswith("sweep.json") for record in records) >= 40
    assert {"results/bench/README.md", "results/demo/README.md", "tests/golden/log.txt"} <= records
    golden = list(GOLDEN.rglob("*.json"))
    assert golden and {path.relative_to(ROOT).as_posix() for path in golden} <= records


def test_what_is_a_commit_in_a_text() -> None:
    text = f"commit `0a1b2c3`, 1048576 and {'0a' * 20}, id 0123456789ab, defaced; code_hash 12345678"
    assert commits_in_text(text) == ["0a1b2c3", "0a" * 20]
    made = "<!-- evaluations, made by task=report -->0a1b2c3<!-- end of evaluations -->"
    assert commits_in_text(made) == []


def test_each_fault_is_named() -> None:
    history = History(["aaa1" * 10, "bbb2" * 10])
    known, gone = Named("results/a/sweep.json", "aaa1" * 10), Named("results/b/sweep.json", "ccc3" * 10)
    assert history.has("bbb2bbb") and not history.has("bbb3") and not history.has("fff")
    assert faults([known], {}, history) == []
    assert faults([known, gone], {gone: "squashed"}, history) == []
    (new,) = faults([known, gone], {}, history)
    assert "results/b/sweep.json" in new and "is not in the history" in new
    (empty,) = faults([gone], {gone: ""}, history)
    assert "no reason" in empty
    (found,) = faults([known], {known: "squashed"}, history)
    assert "is in the history" in found
    (anew,) = faults([known], {gone: "squashed"}, history)
    assert "no longer names" in anew


def test_a_shallow_clone_and_no_repository_say_so(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    with pytest.raises(NoHistoryError, match="not a git repository"):
        History.of(tmp_path)
    git("init", "-q", "whole")
    for message in ("first", "second"):
        git("-C", "whole", "commit", "-q", "--allow-empty", "-m", message)
    assert len(History.of(tmp_path / "whole")._commits) == 2
    git("clone", "-q", "--depth", "1", (tmp_path / "whole").as_uri(), "shallow")
    with pytest.raises(NoHistoryError, match="shallow"):
        History.of(tmp_path / "shallow")
