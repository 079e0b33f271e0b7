"""Command lines of all tasks, parallelisms and sweeps with many odd values: taken, or refused in one line."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from fuzzing import Attempt
from task_fuzzing import PLACES, SUFFIXED, TaskFuzzer, make_places, path_keys
from test_fuzz import faults

from gradwire.harness.config.compose import composed_hydra
from gradwire.harness.config.flags import read_flags
from gradwire.harness.config.overrides import choices_of, parse
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.plan import plan_sweep
from gradwire.harness.tasks.front import arranged, check_command_line

OVERRIDES = int(os.environ.get("GRADWIRE_FUZZ", "2400"))
SEED = int(os.environ.get("GRADWIRE_FUZZ_SEED", "0"))

SECONDS = 20
"""The longest time that a check may take, on a busy machine, too."""

MOST_MEMORY = 500 * 2**20


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of odd files, in which no check may wait, or take memory without bound."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    make_places(tmp_path)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "saved.npz", gradients=rng.standard_normal((2, 4096), dtype=np.float32))

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def outcome(attempt: Attempt) -> str | None:
    """None if the command line could run, else its refusal; of a sweep, that of the plan of its cells."""
    signal.alarm(SECONDS)
    try:
        arguments = arranged(attempt.arguments)
        check_command_line(arguments)
        if "--multirun" in arguments:
            given = read_flags(arguments).overrides
            single = [str(each.input_line) for each in parse(given) if not each.is_sweep_override()]
            plan_sweep(composed_hydra(choices_of(single)), given)  # type: ignore[arg-type]
    except ConfigError as error:
        return str(error)
    finally:
        signal.alarm(0)
    return None


def test_command_lines_of_all_tasks_are_taken_or_refused_in_one_line(place: Path) -> None:
    wrong, taken, refused, tried = [], 0, 0, 0
    fuzzer = TaskFuzzer(SEED, {"folder": "folder", "gradients": "saved.npz"})
    for attempt in fuzzer.attempts(OVERRIDES):
        tried += len(attempt.tried)
        shown = [text[:80] for text in attempt.arguments]
        try:
            refusal = outcome(attempt)
        except BaseException as error:
            wrong.append(f"{shown}: {type(error).__name__}: {error}"[:600])
            continue
        taken, refused = taken + (refusal is None), refused + (refusal is not None)
        found = [] if refusal is None else faults(attempt, refusal)
        wrong += [f"{shown} {fault}: {refusal}" for fault in found]
    print(f"{tried} overrides in {taken + refused} command lines: {taken} taken, {refused} refused")
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n".join(wrong[:40])
    assert tried >= OVERRIDES
    assert min(taken, refused) > OVERRIDES / 50, "one-sided: it would not see much"


def test_no_key_waits_for_a_file_or_reads_one_without_end(place: Path) -> None:
    """Every key that takes a text, with a pipe, a device, what has no end, and other things that are no file
    of its kind."""
    wrong = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for key in path_keys():
        for name in (*PLACES, *SUFFIXED) if key.name == "gradients" else PLACES:
            attempt = Attempt(key.chosen, (f"{key.name}={name}",))
            try:
                refusal = outcome(attempt)
            except BaseException as error:
                wrong.append(f"{attempt.arguments}: {type(error).__name__}: {error}"[:400])
                continue
            found = [] if refusal is None else faults(attempt, refusal)
            wrong += [f"{attempt.arguments} {fault}: {refusal}" for fault in found]
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
    assert grown < MOST_MEMORY
