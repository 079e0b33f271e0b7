"""The compiled engine of the simulated clock: the same bytes as the reference in Python, event by event."""

from __future__ import annotations

import ctypes
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_steps import make_case
from reference_engine import run_reference
from simulated_steps import Tasks, ends, post, ring_plan, task, wait

from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.loading import library
from gradwire.harness.network.links import Change, Links, NodeFabric, star, two_level, uplinks
from gradwire.harness.timing.simulate import engine
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.engine import require_engine, run
from gradwire.harness.timing.simulate.plan import OperationTimes, StepPlan


def bits(times: OperationTimes) -> bytes:
    return b"".join(struct.pack("<d", second) for column in times for second in column)


@pytest.mark.parametrize("block", range(20))
def test_the_same_bytes_as_the_reference(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        case = make_case(seed)
        assert bits(run(*case)) == bits(run_reference(*case)), seed


@pytest.mark.parametrize("size", [1, 2, 3, 16, 33])
def test_rings_on_every_kind_of_network(size: int) -> None:
    plan = ring_plan(size, 1000 * size + 1)
    work_s, ready = [0.0] * len(plan.kinds), [0.1 * (rank % 3) for rank in range(size)]
    fabric = NodeFabric(7e3, 0.01, 3e4, 0.001, oversubscription=3.0)
    networks = [star(size, 7e3, 0.01), uplinks(size, 7e3, 0.0)]
    if size % 3 == 0:
        networks.append(two_level(size // 3, 3, fabric))
    for links in networks:
        for background in (None, BackgroundJobs(3, size, 900.0 * size, links, 1) if size > 1 else None):
            found = run(plan, links, work_s, ready, background)
            assert bits(found) == bits(run_reference(plan, links, work_s, ready, background))


def in_any_order(seed: int) -> Tasks:
    """Every two ranks send each other a byte; each rank goes from one to the next in an order of its own."""
    drawn, size = random.Random(seed), 4
    orders = {
        rank: drawn.sample([peer for peer in range(size) if peer != rank], size - 1) for rank in range(size)
    }
    return {
        rank: (
            task(
                *(
                    step
                    for at, peer in enumerate(order)
                    for step in (post([(peer, 1)], [(peer, 1)]), wait(at))
                )
            ),
        )
        for rank, order in orders.items()
    }


def outcome(tasks: Tasks, run_plan: Any) -> object:
    try:
        return ends(tasks, star(len(tasks), 3.0, 0.1), engine=run_plan)
    except RuntimeError as error:
        return str(error)


def test_deadlocks_are_the_same_as_the_references() -> None:
    found = [outcome(in_any_order(seed), run) for seed in range(60)]
    assert found == [outcome(in_any_order(seed), run_reference) for seed in range(60)]
    assert 5 < sum(isinstance(one, str) for one in found) < 55


def ring_of_two(
    links: Links, *, ready: float = 0.0, background: BackgroundJobs | None = None
) -> OperationTimes:
    plan: StepPlan = ring_plan(2, 8)
    return run(plan, links, [0.0] * len(plan.kinds), [ready] * 2, background)


def test_integers_are_floats() -> None:
    assert ring_of_two(star(2, 1000, 2), ready=3) == ring_of_two(star(2, 1000.0, 2.0), ready=3.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_times_must_be_finite(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"times to simulate must be finite, got {wrong}$"):
        ring_of_two(star(2, 1.0, 0.0), ready=wrong)
    with pytest.raises(ValueError, match=f"times to simulate must be finite, got {wrong}$"):
        ring_of_two(star(2, 1.0, wrong))
    plan = ring_plan(2, 8)
    with pytest.raises(ValueError, match=f"times to simulate must be finite, got {wrong}$"):
        run(plan, star(2, 1.0, 0.0), [wrong] * len(plan.kinds), [0.0] * 2)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_are_positive_and_finite(wrong: float) -> None:
    message = f"rates of links must be above 0 and finite, got {wrong}$"
    with pytest.raises(ValueError, match=message):
        ring_of_two(star(2, wrong, 0.0))
    with pytest.raises(ValueError, match=message):
        ring_of_two(replace(star(2, 1.0, 0.0), changes=(Change(9.0, wrong),)))


def test_arguments_out_of_range_are_refused() -> None:
    links = star(2, 1.0, 0.0)
    background = BackgroundJobs(1, 2, 2.0, links, 0)
    background.chunk = 0.0
    with pytest.raises(KernelError, match="simulate on cpu: an argument is out of range"):
        ring_of_two(links, background=background)


def test_a_struct_of_another_size_is_refused() -> None:
    found = require_engine("this test")
    arguments_type, function = found.operation("simulate")
    arguments: Any = arguments_type()
    arguments.call.bytes = ctypes.sizeof(arguments) + 8
    assert function(ctypes.byref(arguments)) == -1


def test_it_is_a_library_of_its_own() -> None:
    found, kernels = require_engine("this test"), library("cpu")
    assert found.declarations.operations == {"simulate": "gradwire_simulation", "train": "gradwire_training"}
    assert kernels is not None and "gradwire_simulation" not in kernels.declarations.structs
    assert not hasattr(kernels.handle, "gradwire_simulate") and found.path.parent == kernels.path.parent


def test_without_its_library_nothing_is_simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADWIRE_LIBRARIES", str(tmp_path))
    monkeypatch.setattr(engine, "library", engine.library.__wrapped__)
    with pytest.raises(ValueError, match="^a step needs the simulated clock, .*_simulator.so is not built"):
        ring_of_two(star(2, 1.0, 0.0))


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def library() -> None:
        raise ImportError("lib.so has version 1, expected 2: build the package again")

    monkeypatch.setattr(engine, "library", library)
    with pytest.raises(ValueError, match="^task=retime needs the simulated clock: lib.so has version 1"):
        require_engine("task=retime")
