"""The compiled engine of the simulated clock: the same bytes as the definition, event by event."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any

import pytest
from timeline_cases import make_case

from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.loading import library
from gradwire.harness.network.links import star, two_level, uplinks
from gradwire.harness.timing.simulate import compiled
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.engine import run, run_in_python
from gradwire.harness.timing.simulate.plan import Times
from gradwire.harness.timing.simulate.rings import ring_plan

pytestmark = pytest.mark.skipif(library("cpu") is None, reason="the library for CPUs is not built")


def bits(times: Times | None) -> bytes:
    assert times is not None
    return b"".join(struct.pack("<d", second) for column in times for second in column)


@pytest.mark.parametrize("block", range(20))
def test_the_same_bytes_as_the_definition(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        case = make_case(seed)
        assert bits(compiled.run_compiled(*case)) == bits(run_in_python(*case)), seed


@pytest.mark.parametrize("size", [1, 2, 3, 16, 33])
def test_rings_on_every_kind_of_network(size: int) -> None:
    plan = ring_plan(size, 1000 * size + 1)
    work_s, ready = [0.0] * len(plan.kinds), [0.1 * (rank % 3) for rank in range(size)]
    fabric: dict[str, Any] = {"rate": 7e3, "latency_s": 0.01, "intra_rate": 3e4, "intra_latency_s": 0.001}
    networks = [star(size, 7e3, 0.01), uplinks(size, 7e3, 0.0)]
    if size % 3 == 0:
        networks.append(two_level(size // 3, 3, **fabric, oversubscription=3.0))
    for links in networks:
        for background in (None, BackgroundJobs(3, size, 900.0 * size, links, 1) if size > 1 else None):
            found = compiled.run_compiled(plan, links, work_s, ready, background)
            assert bits(found) == bits(run_in_python(plan, links, work_s, ready, background))


def test_integers_are_floats() -> None:
    plan, ready = ring_plan(4, 4000), [1, 2, 3, 4]
    found = compiled.run_compiled(plan, star(4, 1000, 2), [0] * len(plan.kinds), ready)
    assert found == run_in_python(plan, star(4, 1000, 2), [0] * len(plan.kinds), ready)


def test_what_is_not_a_float_is_left_to_the_definition() -> None:
    plan: Any = ring_plan(2, 8)
    work_s: list[Any] = [0] * len(plan.kinds)
    exact: Any = Fraction(1, 3)
    assert compiled.run_compiled(plan, star(2, exact, 0), work_s, [0, 0]) is None
    assert compiled.run_compiled(plan, star(2, 1, exact), work_s, [0, 0]) is None
    assert compiled.run_compiled(plan, star(2, 1, 0), work_s, [0, exact]) is None
    assert compiled.run_compiled(plan, star(2, 1, 0), [*work_s[1:], exact], [0, 0]) is None
    background = BackgroundJobs(1, 2, exact, star(2, 1, 0), 0)
    assert compiled.run_compiled(plan, star(2, 1, 0), work_s, [0, 0], background) is None
    assert run(plan, star(2, exact, 0), work_s, [0, 0]).end[-1] == 2 * 4 / exact


def test_what_cannot_be_simulated_is_left_to_the_definition() -> None:
    plan = ring_plan(2, 8)
    work_s = [0.0] * len(plan.kinds)
    for links, ready in (
        (star(2, 0.0, 0.0), 0.0),
        (star(2, float("inf"), 0.0), 0.0),
        (star(2, 1, 0), float("nan")),
    ):
        assert compiled.run_compiled(plan, links, work_s, [ready] * 2) is None
        with pytest.raises(ValueError, match="must be"):
            run(plan, links, work_s, [ready] * 2)


def test_arguments_out_of_range_are_refused() -> None:
    links = star(2, 1.0, 0.0)
    background = BackgroundJobs(1, 2, 2.0, links, 0)
    background.chunk = 0.0
    with pytest.raises(KernelError, match="run_timeline on cpu: an argument is out of range"):
        compiled.run_compiled(ring_plan(2, 8), links, [0.0] * 8, [0.0] * 2, background)


def test_without_the_library_it_is_python(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(11)
    expected = bits(run(*case))
    monkeypatch.setattr(compiled, "_engine", lambda: None)
    assert compiled.run_compiled(*case) is None
    assert bits(run(*case)) == expected
