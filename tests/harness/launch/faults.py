"""Runs that signals hit at random moments, compared with an undisturbed one.

As a script, `python tests/harness/launch/faults.py --points 50 --seed 0` does so until so many signals have
hit. Every other run is started again after each of them; those between continue by themselves
(`cluster.restarts=3`). Each must end within its bounds and name the rank that was hit, leave nothing behind,
and record in the end what the undisturbed run did. The tests use its parts.
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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from command import RUN, assert_alone, errors, started, workers_of
from recorded import outcome
from tiny import TINY_MODEL

from gradwire.harness.launch.patience import LEAVE_S
from gradwire.harness.launch.processes import BEATS, GRACE_S
from gradwire.harness.launch.ranks import PREFIX
from gradwire.harness.runtime import heartbeat
from gradwire.harness.runtime.heartbeat import COMPLETE, START_UP

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
TIMEOUT_S, HANG_S, RESTARTS = 15, 30, 3
BOUNDS = (f"cluster.timeout_s={TIMEOUT_S}", f"cluster.hang_s={HANG_S}")
WORK_S = 240.0
"""Seconds that one attempt's start-up, steps and plots may take on a busy machine, in addition to the
bounds."""

RANDOM = "any moment"
MOMENTS = (RANDOM, RANDOM, RANDOM, START_UP, "warm-up", "evaluation", "checkpoint", "ending", COMPLETE)
"""When a signal is sent: some time after the first step, or when a rank is first seen in that phase."""


def left_behind(directory: Path) -> list[str]:
    """Files of an interrupted run that its end should have removed."""
    hidden = [path for path in directory.rglob(".*") if path.parent.name != "plots"]
    return sorted(str(path.relative_to(directory)) for path in hidden)


Fault = Callable[[subprocess.Popen[str], random.Random], list[int]]
"""Sends a signal and returns which ranks got it, or that it was for all of the run: no rank."""


def kill_a_rank(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    return _to_ranks(run, [rng.randrange(2)], signal.SIGKILL)


def stop_a_rank(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    return _to_ranks(run, [rng.randrange(2)], signal.SIGSTOP)


def stop_all_ranks(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    return _to_ranks(run, [0, 1], signal.SIGSTOP)


def kill_the_parent(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    run.send_signal(signal.SIGKILL)
    return []


def ask_to_stop(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    run.send_signal(rng.choice((signal.SIGTERM, signal.SIGUSR2)))
    return []


def ask_everybody_to_stop(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    """Signals all processes of a job, as a scheduler does."""
    os.killpg(run.pid, signal.SIGTERM)
    return []


def press_control_c(run: subprocess.Popen[str], rng: random.Random) -> list[int]:
    """A terminal's Ctrl-C reaches the whole process group."""
    os.killpg(run.pid, signal.SIGINT)
    return []


def _to_ranks(run: subprocess.Popen[str], ranks: Sequence[int], number: int) -> list[int]:
    """Signals `ranks`; returns those that were there."""
    pids, hit = workers_of(run), []
    for rank in ranks:
        if rank < len(pids):
            try:
                os.kill(pids[rank], number)
            except ProcessLookupError:
                continue
            hit.append(rank)
    return hit


ON_RANKS: tuple[Fault, ...] = (kill_a_rank, stop_a_rank, stop_all_ranks)
ON_ALL: tuple[Fault, ...] = (kill_the_parent, ask_to_stop, ask_everybody_to_stop, press_control_c)


@dataclass
class Signal:
    """A fault that hit a run: its name, the moment, and the ranks it hit."""

    fault: str
    moment: str
    ranks: list[int]


@dataclass
class Attempt:
    """One start of the command: what hit it, how it ended, and how long after the last signal."""

    hits: list[Signal]
    code: int
    printed: str
    errors: str
    last_step: int
    seconds: float


class Command:
    """The command in `here/<name>`, with a folder for temporary files of its own."""

    def __init__(self, here: Path, name: str, arguments: tuple[str, ...]) -> None:
        self.here, self.directory = here, here / name
        self._arguments = (*arguments, *BOUNDS, f"hydra.run.dir={name}")
        self._temporary = here / f"{name}-tmp"
        self._temporary.mkdir(exist_ok=True)

    def start(self, *more: str) -> subprocess.Popen[str]:
        return started(self.here, RUN, *self._arguments, *more, TMPDIR=str(self._temporary))

    def phases(self) -> list[str]:
        """The phases of the ranks; empty if there are none."""
        for file in self._temporary.glob(f"{PREFIX}*/{BEATS}"):
            try:
                memory = bytearray(file.read_bytes())
            except FileNotFoundError:
                continue
            size = heartbeat._SLOT.size
            return [heartbeat._read(memory, start).phase for start in range(0, len(memory), size)]
        return []

    def await_moment(
        self, run: subprocess.Popen[str], moment: str, rng: random.Random, longest_s: float
    ) -> None:
        """Waits until a rank is in the phase, or for a random time after the first new step, or until the run
        ends."""
        before = recorded_steps(self.directory)
        if moment == RANDOM:
            while (
                run.poll() is None
                and recorded_steps(self.directory) == before
                and not is_done(self.directory)
            ):
                time.sleep(0.02)
            deadline = time.monotonic() + rng.uniform(0, longest_s)
            while run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
        while moment != RANDOM and run.poll() is None and moment not in self.phases():
            time.sleep(0.002)

    def scraps(self) -> list[str]:
        """Temporary files that are left."""
        return [path.name for path in self._temporary.iterdir() if path.name.startswith(PREFIX)]


def attempt(
    command: Command, faults: Sequence[Fault], rng: random.Random, longest_s: float, most: int, *more: str
) -> Attempt:
    """Start the command and let up to `most` random signals hit it, one after the other."""
    run, hits, last = command.start(*more), list[Signal](), time.monotonic()
    for _ in range(rng.randint(1, most)):
        moment, fault = rng.choice(MOMENTS), rng.choice(faults)
        if moment == START_UP and fault in (stop_a_rank, stop_all_ranks):
            moment = RANDOM  # ranks have five minutes to come up
        command.await_moment(run, moment, rng, longest_s)
        if run.poll() is not None:
            break
        ranks, last = fault(run, rng), time.monotonic()
        if ranks or fault in ON_ALL:
            hits.append(Signal(fault.__name__, moment, ranks))
        if most > 1:
            _await_next_attempt(run, command, ranks)
    bound = HANG_S + TIMEOUT_S + GRACE_S + LEAVE_S + WORK_S
    try:
        out, err = run.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        run.kill()
        raise AssertionError(f"{hits}: no end within {bound:g} s; phases {command.phases()}") from None
    ended = Attempt(
        hits, run.returncode, out, err, recorded_steps(command.directory), time.monotonic() - last
    )
    assert_alone(run)
    if not any(hit.fault == "kill_the_parent" for hit in hits):
        assert not left_behind(command.directory), left_behind(command.directory)
        assert not command.scraps()
    return ended


def _await_next_attempt(run: subprocess.Popen[str], command: Command, ranks: Sequence[int]) -> None:
    """Waits until the ranks that were hit are gone and the run has continued on its own, or has ended."""
    before = set(workers_of(run))
    deadline = time.monotonic() + HANG_S + TIMEOUT_S + GRACE_S + LEAVE_S + WORK_S
    while ranks and run.poll() is None and (before & set(workers_of(run)) or not workers_of(run)):
        assert time.monotonic() < deadline, f"no end; phases {command.phases()}"
        time.sleep(0.1)


def check_named(ended: Attempt) -> None:
    """The rank that the last signal hit is named, unless there was nothing left for it to do."""
    ranks = ended.hits[-1].ranks if ended.hits else []
    lines = errors(ended.errors)
    if ended.code in (0, -signal.SIGKILL):  # it finished, or was itself killed and says nothing
        assert not lines, lines
        return
    assert len(lines) == 1, ended.errors
    assert "Traceback" not in ended.errors
    if ranks:
        found = ("was killed by SIGKILL", "hung: ")[ended.hits[-1].fault.startswith("stop")]
        assert found in lines[0], (ended.hits, lines)
        for rank in ranks:
            assert f"rank {rank}" in lines[0], (ended.hits, lines)


def recorded_steps(directory: Path) -> int:
    """Lines of `steps.jsonl`, whole ones."""
    path = directory / "steps.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def is_done(directory: Path) -> bool:
    return (directory / "DONE").exists()


def started_again(command: Command, rng: random.Random) -> list[Attempt]:
    """Start a command again and again until its run is done; a signal hits each start but the last."""
    attempts: list[Attempt] = []
    while not is_done(command.directory):
        attempts.append(attempt(command, (*ON_RANKS, *ON_ALL), rng, 2.5, 1))
        check_named(attempts[-1])
        assert len(attempts) < 60, "the run does not get on"
    return attempts


def restarted(command: Command, rng: random.Random) -> list[Attempt]:
    """One command whose ranks are hit up to `RESTARTS` times; it finishes on its own."""
    ended = attempt(command, ON_RANKS, rng, 2.5, RESTARTS, f"cluster.restarts={RESTARTS}")
    assert ended.code == 0, (ended.hits, ended.errors)
    lines = [line for line in ended.printed.splitlines() if line.startswith("restart ")]
    assert len(lines) <= len(ended.hits)
    for line in lines:
        assert any(all(f"rank {rank}" in line for rank in hit.ranks) for hit in ended.hits), (
            ended.hits,
            line,
        )
    return [ended]


def _story(attempts: Sequence[Attempt]) -> str:
    return "; ".join(
        ", ".join(f"{hit.fault} {hit.ranks or ''} ({hit.moment})" for hit in item.hits)
        + f" -> exit {item.code} at {item.last_step} after {item.seconds:.0f} s"
        for item in attempts
        if item.hits
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=50, help="signals that must hit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="e.g. codec=mxfp8 network=shaped")
    given = parser.parse_args()
    rng, arguments = random.Random(given.seed), (*COMMAND, *given.overrides)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        here = Path(folder) / "work"
        here.mkdir()
        shared_before = set(os.listdir("/dev/shm"))
        undisturbed = Command(here, "undisturbed", arguments)
        run = undisturbed.start()
        _, err = run.communicate(timeout=600)
        assert run.returncode == 0, err
        expected, hits, number = outcome(here / "undisturbed"), list[tuple[str, str, Signal, Attempt]](), 0
        while len(hits) < given.points:
            number += 1
            again = bool(number % 2)
            command = Command(here, f"disturbed{number}", arguments)
            attempts = (started_again if again else restarted)(command, rng)
            assert outcome(command.directory) == expected, f"run {number} differs"
            if attempts[-1].code != -signal.SIGKILL:  # else the next launcher removes what this one left
                assert not command.scraps(), command.scraps()
            kind = "started again" if again else f"cluster.restarts={RESTARTS}"
            hits += [(kind, hit.moment, hit, item) for item in attempts for hit in item.hits]
            print(f"run {number} ({kind}): equal bit for bit after {_story(attempts)}", flush=True)
        left = {name for name in set(os.listdir("/dev/shm")) - shared_before if "gradwire" in name}
        assert not left, left
        _print_table(hits)
        print(
            f"{len(hits)} signals in {number} runs (seed {given.seed}): every run ended in time and "
            "named the rank; losses, errors, bytes and weights equal bit for bit"
        )


def _print_table(hits: Sequence[tuple[str, str, Signal, Attempt]]) -> None:
    counts = Counter((hit.fault, moment, kind) for kind, moment, hit, _ in hits)
    print("\n| signal | moment | the run is | hits |\n|---|---|---|---|")
    for (fault, moment, kind), count in sorted(counts.items()):
        print(f"| {fault.replace('_', ' ')} | {moment} | {kind} | {count} |")
    print(f"\nlongest from the last signal to the end: {max(item.seconds for *_, item in hits):.0f} s\n")


if __name__ == "__main__":
    main()
