"""The number of launches of a round, counted on emulated kernels: on a GPU each takes microseconds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from captured_rounds import Rounds, capturable
from emulated_graph import EmulatedGraph
from emulation import emulation

from gradwire.codecs.native.choice import using_kernels

SIZE, NUMEL = 8, 40_000
TOPOLOGIES = ("ring", "butterfly")


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    emulation()
    with using_kernels("emulated"):
        yield


def launches(name: str, options: dict[str, Any], topology: str) -> tuple[float, float]:
    """Kernels and memsets, and operations of PyTorch other than views, that a rank of eight launches in a
    captured round. Messages are not counted: they are the network's."""
    graph = EmulatedGraph()
    rounds = Rounds(name, options, SIZE, topology, NUMEL, torch.device("cpu"))
    captured = rounds.captured(graph)  # kept, because the graph uses its memory
    count = ctypes.CDLL(str(emulation().path)).gradwire_emulation_launches
    count.restype = ctypes.c_int64
    before = count()
    captured.launch(rounds.key(3))
    return (count() - before) / SIZE, (graph.operations - graph.copies_of_messages) / SIZE


MOST = {
    "fp32": (7, 5),
    "bf16": (15, 9),
    "dynamiq": (20, 14),
    "dynamiq_plus": (20, 14),
    "uniform": (16, 10),
    "mxfp8": (34, 24),
    "mxfp6": (34, 24),
    "mxfp4": (34, 24),
    "thc": (25, 19),
    "qsgd": (17, 20),
    "terngrad": (17, 20),
    "tfp": (19, 22),
    "onebit": (19, 22),
    "aqgb": (12, 12),
    "linear": (33, 30),
    "all_to_all": (16, 16),
    "powersgd": (29, 27),
    "optimus_cc": (29, 27),
}
"""The most that a rank may launch on a ring and on a butterfly. DynamiQ has 1 kernel of statistics, 3 of
metadata, 1 of the plan, and on a ring 15 of hops; on a butterfly 9, of several chunks each."""

CASES = [(name, at, most) for name, each in MOST.items() for at, most in zip(TOPOLOGIES, each, strict=True)]


@pytest.mark.parametrize(("name", "topology", "most"), CASES)
def test_a_round_has_few_launches(name: str, topology: str, most: int) -> None:
    kernels, operations = launches(name, {}, topology)
    assert most - 1 < kernels + operations <= most, (kernels, operations)


def test_every_codec_that_can_be_captured_has_a_limit() -> None:
    assert set(capturable()) <= set(MOST)


def test_an_operation_of_pytorch_is_counted_and_a_view_is_not() -> None:
    graph, x = EmulatedGraph(), torch.ones(8)
    graph.capture(lambda: x.view(2, 4).add_(1))  # type: ignore[arg-type,return-value]
    assert graph.operations == 1
