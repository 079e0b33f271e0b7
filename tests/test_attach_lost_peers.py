"""If a rank is killed, every other rank says so, and none hangs or is left behind."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import attach_lost_peers_jobs as jobs
import pytest

from gradwire.harness.library.agreement import Failure
from gradwire.harness.library.failures import origin

LOST = r"SynchronizationError: rank \d, step 2: rank \d lost rank \d: "
UNCONNECTED = (
    r"SynchronizationError: rank \d: attach\(\): the ranks agree, but cannot be connected within 3 s: "
)
NO_STORE = "ConnectionError: the process group's store, through which ranks agree, cannot be reached: "
SILENT_STORE = (
    r"ConnectionError: attach\(\): the process group's store, through which ranks agree, has not answered "
    r"within 3 s; is the process that serves it, rank 0 as a rule, stopped\?"
)
NO_ANSWER = r"TimeoutError: attach\(\): (rank 1 of 3 called it|rank \d has given up waiting for rank 1$)"


@pytest.mark.parametrize(
    ("job", "victim", "expected"),
    [
        (jobs.in_training, 1, LOST),
        (jobs.between_two_steps, 0, LOST),
        (jobs.in_sharded_training, 1, LOST),
        (jobs.in_the_agreement, 0, NO_STORE),  # rank 0 serves it, as for `env://`
        (jobs.in_the_agreement, 1, NO_ANSWER),
        (jobs.stopped_in_the_agreement, 0, SILENT_STORE),
        (jobs.stopped_in_the_agreement, 2, r"TimeoutError: attach\(\): rank"),
        (jobs.stopped_as_they_connect, 0, f"{UNCONNECTED}|{SILENT_STORE}"),
        (jobs.after_the_agreement, 0, f"{UNCONNECTED}|{NO_STORE}"),  # some may be reading it still
        (jobs.after_the_agreement, 1, UNCONNECTED),
    ],
)
def test_every_survivor_says_who_or_what_was_lost(
    job: Callable[[int, int], str], victim: int, expected: str, tmp_path: Path
) -> None:
    said, codes = jobs.run(job, victim, tmp_path)
    assert codes == [-signal.SIGKILL if rank == victim else 0 for rank in range(jobs.SIZE)]
    for text in said.values():
        assert re.match(expected, text), said
        assert "\n" not in text
        assert "and then" not in text, "a later pass raises the error again"
    if expected == LOST:
        assert any(f"lost rank {victim}: " in text for text in said.values()), said


def test_where_a_chain_of_lost_ranks_began() -> None:
    """Rank 4 has lost rank 3, which has lost rank 2, which can say nothing."""
    failures = {3: Failure("rank 3 lost rank 2: reset", 2), 5: Failure("rank 5 lost rank 4: closed", 4)}
    assert origin(3, failures) == {3: failures[3]}
    assert origin(5, {**failures, 4: Failure("rank 4 lost rank 3: closed", 3)}) == {3: failures[3]}
    assert origin(2, failures) == {}
    turned = {1: Failure("rank 1 lost rank 2", 2), 2: Failure("rank 2 lost rank 1", 1)}
    assert origin(1, turned) == {2: turned[2]}
    by_itself = {6: Failure("ValueError: its own words", None)}
    assert origin(3, {**failures, **by_itself}) == by_itself
