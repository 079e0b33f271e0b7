"""Command lines in a process of a launcher: one rank answers, and its variables are numbers."""

from __future__ import annotations

import pytest

from gradwire.harness.tasks.front import start


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_under_torchrun_rank_0_refuses(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "size=tiny", "overlap=false"])
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_variables_of_ranks_are_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "size=tiny"])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(name, "x")
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {name}=x in the environment: ") and f"unset {name}" in line
