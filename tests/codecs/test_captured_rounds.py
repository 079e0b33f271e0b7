"""Rounds captured once and launched: the bytes of rounds that run step by step, at no work of the host's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from captured_rounds import CASES, STATEFUL, Rounds, assert_launches_keep_state
from emulated_graph import EmulatedGraph
from emulation import emulation

from gradwire.codecs.interface import Layout
from gradwire.codecs.native.call import Call
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.codecs.step_memory import lower_median
from gradwire.harness.comm.transport.captured_rounds import CapturedRound
from gradwire.harness.parallel.buckets import MemoryOrder
from gradwire.harness.studies.bench.host import _Operations

CPU, NUMEL = torch.device("cpu"), 3000
LAYOUT = Layout.flat(NUMEL)


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    emulation()
    with using_kernels("emulated"):
        yield


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_launches_give_the_bytes_of_each_step(
    name: str, options: dict[str, Any], size: int, topology: str
) -> None:
    """The key is another one in each, and so are the gradients."""
    rounds = Rounds(name, options, size, topology, NUMEL, CPU)
    assert rounds.codecs[0].refuses_capture(LAYOUT) is None
    captured = rounds.captured(EmulatedGraph())
    for step in (2, 5, 3):
        rounds.fill(step)
        expected = rounds.run(step, rounds.copies())
        captured.launch(rounds.key(step))
        for mean, wanted in zip(captured.result, expected, strict=True):
            assert torch.equal(mean.view(torch.int32), wanted.view(torch.int32))


def test_a_bucket_is_put_in_order_within_the_round() -> None:
    """A parameter that lies in memory column after column, of which the codec sees the rows."""
    columns = torch.arange(NUMEL).view(60, 50).t().reshape(-1)  # where the elements are by rows
    rounds, plain = (Rounds("dynamiq", {}, 2, "ring", NUMEL, CPU) for _ in range(2))
    matrix = Layout(("matrix",), ((50, 60),), (0,), NUMEL)
    rounds.order = MemoryOrder(matrix, {"matrix": (1, 50)})
    captured = rounds.captured(EmulatedGraph())
    for step in (2, 5):
        rounds.fill(step)
        for x, own in zip(plain.xs, rounds.xs, strict=True):
            x.copy_(own[columns])
        captured.launch(rounds.key(step))
        for mean, wanted in zip(captured.result, plain.run(step, plain.new_codecs()), strict=True):
            assert torch.equal(mean[columns], wanted)


def test_other_rounds_leave_a_captured_one_alone() -> None:
    """No later round gets what the codec keeps from round to round if the graph uses it."""
    rounds = Rounds("dynamiq", {}, 2, "ring", NUMEL, CPU)
    captured = rounds.captured(EmulatedGraph())
    memory = {hop._call.arguments.counts for kept in captured.given.kept for hop in kept.hops.values()}  # type: ignore[attr-defined]
    assert len(captured.given.kept) == 2 and len(memory) == 4
    rounds.run(3)
    free = [item for codec in rounds.codecs for items in codec._pool._free.values() for item in items]  # type: ignore[attr-defined]
    assert len(free) == 2
    assert not memory & {hop._call.arguments.counts for kept in free for hop in kept.hops.values()}


def test_a_launch_is_one_operation_of_the_hosts() -> None:
    """The key is written, and nothing else is done for the 24 kernels and the copies of a bucket."""
    graph = EmulatedGraph()
    captured = Rounds("dynamiq", {}, 3, "ring", NUMEL, CPU).captured(graph)
    assert graph.calls == 24 and graph.operations > 10
    operations, launch = _Operations(), graph.launch
    with mock.patch.object(Call, "run", side_effect=AssertionError("a call of the host's")):
        with mock.patch.object(graph, "launch"), operations:
            captured.launch((1, 2))
        launch()
    assert dict(operations.names) == {"aten.fill_.Scalar": 1}


@pytest.mark.parametrize("key", [(0, 0), (1, 0x8000_0000), (0xFFFF_FFFF, 0xFFFF_FFFF), (0x8000_0001, 7)])
def test_a_key_comes_to_the_device_as_it_is(key: tuple[int, int]) -> None:
    graph = mock.Mock()
    captured = CapturedRound(graph, CPU)
    captured.launch(key)
    assert [word & 0xFFFF_FFFF for word in captured.given.key_place.tolist()] == list(key)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("dynamiq", {"exact_size": True}, "codec.exact_size=true"),
        ("dynamiq", {"allocation": "exact"}, "codec.allocation=exact"),
        ("qsgd", {"bits": [2, 8], "ef": True}, "codec.bits=[2, 8]"),
        ("powersgd", {"exclude": ["bias"]}, "codec=powersgd"),
        ("qsgd", {"bits": [2, 8]}, "codec.bits=[2, 8]"),
        ("edgc", {}, "codec=edgc"),
        ("powersgd", {}, "codec=powersgd"),
    ],
)
def test_what_is_not_the_same_in_every_step_is_refused(
    name: str, options: dict[str, Any], reason: str
) -> None:
    said = make_codec(name, **options).refuses_capture(LAYOUT)
    assert said is not None and said.startswith(reason), said


def test_definitions_take_the_key_by_value() -> None:
    with using_kernels("default"):
        assert make_codec("dynamiq").refuses_capture(LAYOUT) == "kernels=default takes the key by value"
        assert make_codec("fp32").refuses_capture(LAYOUT) is None


def test_codecs_with_compiled_kernels_allow_a_capture() -> None:
    kernels = {
        "dynamiq",
        "dynamiq_plus",
        "uniform",
        "qsgd",
        "terngrad",
        "onebit",
        "tfp",
        "thc",
        "mxfp8",
        "mxfp6",
        "mxfp4",
    }
    assert {"fp32", "bf16", *kernels} <= {name for name, _ in CASES}


def test_a_capture_refuses_what_the_host_would_wait_for() -> None:
    graph, x = EmulatedGraph(), torch.ones(3)
    for work in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: torch.tensor([1.0])):
        with pytest.raises(RuntimeError, match="not permitted"):
            graph.capture(work)  # type: ignore[arg-type]


def test_a_clock_tells_when_each_launch_passed_its_marks() -> None:
    """In the order of the work; the next launch sets them anew."""
    graph, x, marks = EmulatedGraph(), torch.ones(3), list[object]()
    clock = graph.clock(float)

    def work() -> None:
        for _ in range(3):
            marks.append(clock.timestamp())
            x.add_(1)

    graph.capture(work)
    with pytest.raises(AssertionError, match="no launch has passed"):
        clock.seconds(marks[0])
    graph.launch()
    first = [clock.seconds(mark) for mark in marks]
    graph.launch()
    second = [clock.seconds(mark) for mark in marks]
    assert graph.marks == 3 and first == sorted(first) and first[-1] <= second[0] and second == sorted(second)


@pytest.mark.parametrize(("topology", "scatters"), [("ring", False), ("butterfly", False), ("ring", True)])
@pytest.mark.parametrize(
    ("name", "options", "layout"), [*((name, options, None) for name, options in CASES), *STATEFUL]
)
def test_launches_keep_state_as_steps_do(
    name: str, options: dict[str, Any], layout: Layout | None, topology: str, scatters: bool
) -> None:
    rounds, plain = (Rounds(name, options, 3, topology, NUMEL, CPU, layout) for _ in range(2))
    if scatters and not rounds.codecs[0].scatters:
        pytest.skip("this codec has no scatter")
    rounds.scatters = plain.scatters = scatters
    assert rounds.codecs[0].refuses_capture(rounds.layout) is None
    assert_launches_keep_state(rounds, plain, EmulatedGraph())


def test_launches_follow_a_file_of_decisions(tmp_path: Path) -> None:
    rows = [{"steps": None, "settings": {}}, *({"step": n, "mu": [1 + n / 4, 1.0]} for n in range(1, 11))]
    path = tmp_path / "decisions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"decisions": str(path)}
    rounds, plain = (Rounds("mxfp4", options, 2, "ring", NUMEL, CPU) for _ in range(2))
    assert_launches_keep_state(rounds, plain, EmulatedGraph())


def test_a_launch_brings_what_a_codec_has_decided_to_the_device() -> None:
    """The key; and for each rank μ and the counts of the step before."""
    graph = EmulatedGraph()
    captured = Rounds("mxfp8", {}, 3, "ring", NUMEL, CPU).captured(graph)
    operations, launch = _Operations(), graph.launch
    with mock.patch.object(graph, "launch"), operations:
        captured.launch((1, 2))
    launch()
    assert dict(operations.names) == {"aten.fill_.Scalar": 1 + 3, "aten.copy_.default": 3}


@pytest.mark.parametrize("count", range(6))
def test_the_lower_median_is_pytorchs(count: int) -> None:
    values = torch.full((5,), torch.nan)
    values[:count] = torch.rand(count)
    assert torch.equal(lower_median(values), values.nanmedian()) or not count
    assert lower_median(values).isnan() == (count == 0)
