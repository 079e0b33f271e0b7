"""Runs that are killed at random moments and started again, compared with one that nothing disturbed.

As a script, `python tests/harness/launch/faults.py --points 24 --seed 0` does so until so many faults have
hit, and says what it saw; the tests use its parts.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from command import RUN, assert_alone, started, workers_of
from recorded import outcome
from tiny import TINY_MODEL

STEPS = 60
COMMAND = (
    *TINY_MODEL,
    f"train.steps={STEPS}",
    "train.checkpoint_every=3",
    "train.log_every=4",
    "eval.every=10",
    "eval.max_sequences=8",
    "measure.vnmse_every=5",
    "model.dropout=0.1",
    "cluster.workers=2",
)


def left_behind(directory: Path) -> list[str]:
    """Files of an interrupted run that its end should have removed."""
    hidden = [path for path in directory.rglob(".*") if path.parent.name != "plots"]
    return sorted(str(path.relative_to(directory)) for path in hidden)


def kill_a_rank(run: subprocess.Popen[str], rng: random.Random) -> None:
    ranks = workers_of(run)
    if ranks:
        os.kill(rng.choice(ranks), signal.SIGKILL)


def kill_the_parent(run: subprocess.Popen[str], rng: random.Random) -> None:
    run.send_signal(signal.SIGKILL)


def ask_to_stop(run: subprocess.Popen[str], rng: random.Random) -> None:
    run.send_signal(rng.choice((signal.SIGTERM, signal.SIGUSR2)))


def ask_everybody_to_stop(run: subprocess.Popen[str], rng: random.Random) -> None:
    """As a scheduler does that signals all processes of a job."""
    os.killpg(run.pid, signal.SIGTERM)


def press_control_c(run: subprocess.Popen[str], rng: random.Random) -> None:
    """A terminal's Ctrl-C reaches the whole process group."""
    os.killpg(run.pid, signal.SIGINT)


FAULTS: tuple[Callable[[subprocess.Popen[str], random.Random], None], ...] = (
    kill_a_rank,
    kill_the_parent,
    ask_to_stop,
    ask_everybody_to_stop,
    press_control_c,
)


@dataclass
class Attempt:
    """One start of the command: which fault hit it, if any, and how it ended."""

    fault: str
    code: int
    printed: str
    errors: str
    last_step: int


def attempt(
    here: Path, directory: Path, arguments: tuple[str, ...], rng: random.Random, longest_s: float
) -> Attempt:
    """Start the command and let a random fault hit it within `longest_s` of its first new step."""
    before = recorded_steps(directory)
    run = started(here, RUN, *arguments, f"hydra.run.dir={directory.name}")
    fault, name = rng.choice(FAULTS), "none"
    while run.poll() is None and recorded_steps(directory) == before and not is_done(directory):
        time.sleep(0.02)
    deadline = time.monotonic() + rng.uniform(0, longest_s)
    while run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if run.poll() is None:
        name = fault.__name__
        fault(run, rng)
    out, err = run.communicate(timeout=180)
    assert_alone(run)
    if name != "kill_the_parent":
        assert not left_behind(directory), left_behind(directory)
    return Attempt(name, run.returncode, out, err, recorded_steps(directory))


def recorded_steps(directory: Path) -> int:
    """Lines of `steps.jsonl`, whole ones."""
    path = directory / "steps.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def is_done(directory: Path) -> bool:
    return (directory / "DONE").exists()


def disturbed_run(
    here: Path, name: str, arguments: tuple[str, ...], rng: random.Random, longest_s: float
) -> list[Attempt]:
    """The same command again and again, each start but the last hit by a fault, until the run is done."""
    attempts: list[Attempt] = []
    while not is_done(here / name):
        attempts.append(attempt(here, here / name, arguments, rng, longest_s))
        assert len(attempts) < 60, "the run does not get on"
    return attempts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=24, help="faults that must hit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="e.g. cluster=virtual codec=mxfp8")
    given = parser.parse_args()
    rng, arguments = random.Random(given.seed), (*COMMAND, *given.overrides)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        here = Path(folder) / "work"
        here.mkdir()
        run = started(here, RUN, *arguments, "hydra.run.dir=undisturbed")
        _, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
        expected, hits, number = outcome(here / "undisturbed"), 0, 0
        while hits < given.points:
            number += 1
            attempts = disturbed_run(here, f"disturbed{number}", arguments, rng, longest_s=2.5)
            assert outcome(here / f"disturbed{number}") == expected, f"run {number} differs"
            hits += sum(item.fault != "none" for item in attempts)
            story = ", ".join(f"{item.fault} at {item.last_step} (exit {item.code})" for item in attempts)
            print(f"run {number}: equal bit for bit after {story}", flush=True)
        print(f"{hits} faults in {number} runs: losses, errors, bytes and weights equal bit for bit")


if __name__ == "__main__":
    main()
