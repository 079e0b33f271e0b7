"""The number of launches of a round, counted on emulated kernels: on a GPU each takes microseconds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from captured_rounds import Rounds
from emulated_graph import EmulatedGraph
from emulation import emulation

from gradwire.codecs.native.choice import using_kernels

SIZE, NUMEL = 8, 40_000


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
    ("dynamiq", "ring"): 21,
    ("dynamiq", "butterfly"): 24,
    ("dynamiq_plus", "ring"): 21,
    ("dynamiq_plus", "butterfly"): 24,
    ("bf16", "ring"): 15,
    ("bf16", "butterfly"): 9,
}
"""The most that a rank may launch. DynamiQ has 1 kernel of statistics, 3 of metadata, those of the plan, and
on a ring 15 of hops; on a butterfly hops of several chunks have a kernel for each."""


@pytest.mark.parametrize(("name", "topology"), MOST)
def test_a_round_has_few_launches(name: str, topology: str) -> None:
    kernels, operations = launches(name, {}, topology)
    assert kernels + operations <= MOST[name, topology], (kernels, operations)


def test_an_operation_of_pytorch_is_counted_and_a_view_is_not() -> None:
    graph, x = EmulatedGraph(), torch.ones(8)
    graph.capture(lambda: x.view(2, 4).add_(1))  # type: ignore[arg-type,return-value]
    assert graph.operations == 1
