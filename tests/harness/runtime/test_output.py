"""A command's lines fail nothing: in no encoding, without a reader, on a full disk, closed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.harness.launch.processes import is_expected
from gradwire.harness.runtime import output
from gradwire.harness.runtime.errors import ConfigError, found_late, is_own, is_refusal, one_line
from gradwire.harness.runtime.output import guarded, output_was_taken

LINE = "5 μs – naïve"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reader's and the writer's end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def leave(end: int) -> None:
    """Closes one end of a pipe; its number stays in use."""
    with open(os.devnull, "r+b") as null:
        os.dup2(null.fileno(), end)


def opened(descriptor: int, **options: object) -> io.TextIOWrapper:
    """A stream as Python opens it for a standard file."""
    return open(descriptor, "w", closefd=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "cp1252", "koi8-r"])
def test_every_encoding_takes_every_line(encoding: str, pipe: tuple[int, int]) -> None:
    """Characters that it lacks become escapes; half a character is one that UTF-8 lacks."""
    stream = guarded(opened(pipe[1], encoding=encoding))
    text = f"{LINE} \udc80"
    print(text, file=stream, flush=True)
    assert os.read(pipe[0], 1000) == f"{text}\n".encode(encoding, "backslashreplace")
    assert stream.encoding == encoding
    assert guarded(stream) is stream


def test_a_closed_reader_is_reported_once(pipe: tuple[int, int]) -> None:
    told = list[OSError]()
    stream = guarded(opened(pipe[1]), told.append)
    print("read", file=stream, flush=True)
    leave(pipe[0])
    for _ in range(3):
        print("not read" * 10_000, file=stream, flush=True)
    assert [type(error) for error in told] == [BrokenPipeError]
    os.write(pipe[1], b"as C code or a process started from now on would")
    stream.close()


def test_a_full_disk_and_a_closed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    told = list[OSError]()
    stream = guarded(opened(full), told.append)
    print(LINE, file=stream)
    monkeypatch.setattr(sys, "stdout", stream)
    assert not output_was_taken()
    assert [error.strerror for error in told] == ["No space left on device"]
    os.close(full)
    closed = guarded(None)
    print(LINE, file=closed, flush=True)
    monkeypatch.setattr(sys, "stdout", closed)
    assert output_was_taken()


def test_unbuffered_streams_stay_so(pipe: tuple[int, int]) -> None:
    raw = io.TextIOWrapper(io.FileIO(pipe[1], "w", closefd=False), write_through=True)  # type: ignore[type-var]
    stream = guarded(raw)
    stream.write("at once")
    assert os.read(pipe[0], 100) == b"at once"


def test_a_pipe_that_does_not_wait_loses_nothing(pipe: tuple[int, int]) -> None:
    """A program that shares the terminal may have set it so."""
    os.set_blocking(pipe[1], False)
    stream, data = guarded(opened(pipe[1])), "x" * 300_000
    if os.fork() == 0:
        stream.write(data)
        stream.flush()
        os._exit(0)
    leave(pipe[1])
    with open(pipe[0], closefd=False) as reader:
        assert reader.read() == data
    os.wait()


@pytest.mark.parametrize(
    ("error", "goes_on", "said"),
    [
        (BrokenPipeError(32, "Broken pipe"), False, ""),
        (
            BrokenPipeError(32, "Broken pipe"),
            True,
            "warning: standard output cannot be written (Broken pipe): ",
        ),
        (
            OSError(28, "No space left"),
            False,
            "error: standard output cannot be written (No space left): send",
        ),
        (
            OSError(28, "No space left"),
            True,
            "warning: standard output cannot be written (No space left): the ",
        ),
    ],
)
def test_what_is_said_of_it(
    error: OSError,
    goes_on: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A page piped into `head` may be cut short silently; lost lines of a run are reported."""
    monkeypatch.setattr(output, "_is_run", goes_on)
    output._on_error(error)
    printed = capsys.readouterr().err
    assert printed.startswith(said) and printed.count("\n") == bool(said)
    monkeypatch.setattr(output, "_warns", False)
    output._on_error(error)
    assert capsys.readouterr().err == ""


def foreign_error() -> ValueError:
    """One that a library raises, as Python's own do."""
    with pytest.raises(ValueError) as raised:
        list(__import__("statistics").quantiles([1, 2], n=0))
    return raised.value


def test_only_own_errors_before_the_start_are_refusals(tmp_path: Path) -> None:
    """They end a command with exit code 2; others end it with 1, and the line has the error's type."""
    with pytest.raises(ValueError) as raised:
        "–".encode("latin-1")
    for error in (raised.value, foreign_error()):
        assert is_expected(error) and not is_own(error) and not is_refusal(error)
        assert one_line(error).startswith(f"{type(error).__name__}: ")
    refusal = ConfigError("seed=x: no number")
    assert is_refusal(refusal) and one_line(refusal) == "seed=x: no number"
    found_late(refusal)
    assert not is_refusal(refusal) and is_own(refusal)
