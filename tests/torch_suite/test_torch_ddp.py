"""torch's own tests of DistributedDataParallel, with every model that they make attached to a codec."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pool import WorkerPool
from torch_ddp_names import EXCEPTIONS, LEAVE_BROKEN_REDUCERS, LOSSY_EXCEPTIONS, PASS_PLAIN, SAMPLE
from torch_ddp_tests import all_names, outcome

LOSSY: dict[str, dict[str, Any]] = {
    "dynamiq": {"codec": "dynamiq"},
    "powersgd": {"codec": "powersgd"},
    "topk": {"codec": "topk", "ef": True},
}

RANK_DIED = "a rank has died"
PLAIN_TRIES = 4


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Workers of their own: importing torch's test modules changes settings of a whole process."""
    pool = WorkerPool()
    yield pool
    pool.close()


def outcome_on_two(pool: WorkerPool, name: str, attach: dict[str, Any] | None) -> str:
    """The outcome of a test of torch's on two ranks: one word, or the first failure."""
    try:
        with TemporaryDirectory() as folder:
            results = pool.run(2, outcome, name, attach, folder)
    except (EOFError, ConnectionError):
        pool.close()
        return RANK_DIED
    if name in LEAVE_BROKEN_REDUCERS:
        pool.close()
    return next((result for result in results if result != "passed"), "passed")


def plain_outcome(pool: WorkerPool, name: str) -> str:
    """The outcome without a codec, tried again on new workers where a rank has died.

    torch's hooks chain callbacks that hold the process group. Gloo's thread may drop the last of them, and
    then waits for itself: "Resource deadlock avoided" ends the process, now and then after it has answered.
    """
    for _ in range(PLAIN_TRIES):
        if (found := outcome_on_two(pool, name, None)) != RANK_DIED:
            return found
    return RANK_DIED


def check(pool: WorkerPool, name: str, attach: dict[str, Any]) -> None:
    """A test passes, or is an exception and fails as its reason says."""
    found = outcome_on_two(pool, name, attach)
    if name in EXCEPTIONS:
        reason, words = EXCEPTIONS[name]
        assert words in found, f"{name} should fail, because {reason}"
    else:
        assert found == "passed", found


@pytest.mark.parametrize("name", SAMPLE)
def test_some_hold_for_exact_sums(pool: WorkerPool, name: str) -> None:
    check(pool, name, {"codec": "fp32"})


@pytest.mark.full
@pytest.mark.parametrize("name", PASS_PLAIN)
@pytest.mark.parametrize("topology", ["ring", "butterfly"])
def test_all_hold_for_exact_sums(pool: WorkerPool, name: str, topology: str) -> None:
    check(pool, name, {"codec": "fp32", "topology": topology})


@pytest.mark.full
@pytest.mark.parametrize("name", PASS_PLAIN)
@pytest.mark.parametrize("codec", LOSSY)
def test_lossy_codecs_change_values_alone(pool: WorkerPool, name: str, codec: str) -> None:
    found = outcome_on_two(pool, name, LOSSY[codec])
    _, words = EXCEPTIONS.get(name, LOSSY_EXCEPTIONS.get(name, ("", "values differ")))
    assert found == "passed" or "values differ" in found or words in found, found


@pytest.mark.full
def test_the_list_is_what_passes_without_a_codec(pool: WorkerPool) -> None:
    """Another version of torch may bring more of them."""
    names = pool.run(2, all_names_of_rank)[0]
    slow = {"test_ddp_uneven_inputs"}
    passing = [name for name in names if name not in slow and plain_outcome(pool, name) == "passed"]
    assert sorted(passing) == sorted(PASS_PLAIN)


def all_names_of_rank(rank: int, size: int) -> list[str]:
    return all_names()


def test_exceptions_and_samples_are_listed_tests() -> None:
    assert {*EXCEPTIONS, *SAMPLE, *LEAVE_BROKEN_REDUCERS} <= set(PASS_PLAIN)
