"""Progress: a bar on a terminal, sparse lines elsewhere, nothing for what is quick."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradwire.harness.runtime import progress
from gradwire.harness.runtime.progress import PhaseLines, Progress, in_words, tracked
from gradwire.harness.trainer.recording import TrainingProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Lets so many seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(progress, "FIRST_S", 5.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    yield lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_lines_are_sparse_and_show_the_time_left(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for item in tracked([f"piece {number}" for number in range(60)], "work", "piece", str):
        wait(1 if item != "piece 30" else 4)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "work: piece 5/60, piece 4, about 55 s left",
        "work: piece 25/60, piece 24, about 35 s left",
        "work: piece 42/60, piece 41, about 19 s left",
    ]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal], ids=["a pipe", "a terminal"])
def test_what_is_quick_shows_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", found := stream())
    for _ in tracked(range(1000), "work", "piece"):
        pass
    assert found.getvalue().strip() == ""


def test_long_phases_are_reported(wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    lines = PhaseLines("4 workers")
    for phase, seconds in {"start-up": 30, "": 100, "ending": 4, "warm-up": 6}.items():
        for _ in range(seconds):
            lines.look(phase)
            wait(1)
    assert capsys.readouterr().err.splitlines() == [
        "4 workers: start-up, for 5 s",
        "4 workers: start-up, for 25 s",
        "4 workers: warm-up, for 5 s",
    ]


def test_other_ranks_say_nothing(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    for _ in tracked(range(3), "work", "piece"):
        wait(100)
    assert capsys.readouterr() == ("", "")


def test_the_rate_is_that_of_the_last_pieces_and_of_this_attempt(wait: Callable[[float], None]) -> None:
    with Progress("work", 1000, "piece", done=500) as shown:
        assert shown.seconds_left is None and shown.left() == ""
        for seconds in [*[1.0] * 100, *[2.0] * 60]:
            wait(seconds)
            shown.advance()
        assert shown.seconds_left == pytest.approx(2.0 * 340)
        assert shown.left() == "about 11 min left"


def test_a_bar_on_a_terminal_of_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", Ascii(raw, encoding="ascii", write_through=True))
    with Progress("work", 3, "piece", log=True) as shown:
        for _ in range(3):
            shown.advance("one")
        shown.say("a line of its own")
    text = raw.getvalue().decode("ascii")
    assert "work: 100%" in text and "3/3" in text and "one" in text
    assert "a line of its own" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3600, "1 h"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_training_reports_its_speed(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred million parameters at 1000 tokens/s are 0.6 TFLOP/s, of 2 TFLOP/s of all devices."""
    shown = TrainingProgress("run", 100, True, peak=2e12)
    shown.start(0, 100_000_000)
    for _ in range(10):
        wait(1)
        shown.step()
    shown.show({"loss": 2.5, "tokens_per_s": 1000.0})
    shown.show({"loss": 2.5, "tokens_per_s": 1000.0})
    row = {"step": 10, "train_time_s": 9.0, "perplexity": 12.0}
    shown.evaluation(row, "perplexity")
    shown.skipped([4, 6])
    shown.close()
    assert capsys.readouterr().out.splitlines() == [
        "run: step 10/100, loss 2.500, 1,000 tokens/s, MFU 30.0%, about 2 min left",
        "run: step 10/100, perplexity 12.00, 9.0 s on the training clock, about 2 min left",
        "run: step 7/100 skipped, the last of 2, gradients not finite",
    ]
