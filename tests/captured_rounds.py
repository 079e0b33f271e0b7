"""Rounds of all ranks in this process, step by step or captured: what is compared on CPUs and on GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.interface import Capture, Codec, Layout, Round
from gradwire.codecs.registry import OWN, make_codec
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import CapturedRound
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.graph import Graph
from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local
from gradwire.harness.parallel.buckets import MemoryOrder
from gradwire.harness.parallel.synchronize import Scattering, synchronization

SEED = 11


def capturable() -> list[str]:
    """The codecs of this package of which a round can be captured at their default settings."""
    known = {name: make_codec(name) for name in OWN if not make_codec(name).traits.uses_backend}
    return [name for name, codec in known.items() if codec.refuses_capture(Layout.flat(1000)) is None]


CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in capturable()),
    ("dynamiq", {"rounding": "independent", "values": "uniform"}),
    ("dynamiq", {"exclude": ["no parameter has this name"]}),
    ("thc", {"norm": "bucket"}),
]
"""Every codec that can be captured, with settings that change what it launches."""


TWO = Layout(("matrix", "norm.weight"), ((50, 58), (100,)), (0, 2900), 3000)
"""A bucket of two parameters."""

STATEFUL: list[tuple[str, dict[str, Any], Layout | None]] = [
    ("dynamiq", {"ef": True}, None),
    ("qsgd", {"bits": 8, "ef": True}, None),
    ("tfp", {"ef": True}, None),
    ("thc", {"ef": True}, None),
    ("bf16", {"ef": True}, None),
    ("dynamiq", {"exclude": ["*norm*"]}, TWO),
    ("dynamiq", {"exclude": ["*norm*"], "ef": True}, TWO),
    ("thc", {"exclude": ["matrix", "norm*"]}, TWO),
    ("qsgd", {"bits": 8, "ef": True}, TWO),
    ("mxfp8", {}, None),
    ("mxfp6", {"gamma": 0.6, "scale_rule": "e8m0_even"}, None),
    ("mxfp4", {"gamma": 0.6}, None),
    ("mxfp8", {"gamma": 0.6, "ef": True}, None),
    ("mxfp6", {"gamma": 0.6, "scale_rule": "e8m0_ceil", "ef": True}, None),
    ("mxfp4", {"gamma": 0.6, "exclude": ["*norm*"], "ef": True}, TWO),
    ("mxfp8", {"exclude": ["matrix", "norm*"]}, TWO),
]
"""Codecs with state that lasts from step to step, and buckets of several parts: options and layout."""


class Rounds:
    """Rounds of one bucket on all ranks, whose gradients lie where they lie in every step."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        size: int,
        topology: str,
        numel: int,
        device: torch.device,
        layout: Layout | None = None,
    ) -> None:
        self.layout = replace(layout or Layout.flat(numel), device=device)
        self.size, self._topology = size, topology
        self._made = name, options
        self.codecs = self.new_codecs()
        self.order: MemoryOrder | None = None
        self.scatters = False
        """True if rounds end with shards."""
        self.xs = [torch.empty(numel, device=device) for _ in range(size)]

    def new_codecs(self) -> list[Codec]:
        return [make_codec(self._made[0], **self._made[1]) for _ in range(self.size)]

    def copies(self) -> list[Codec]:
        """New codecs, on any device, in the state of the own ones."""
        copies = self.new_codecs()
        for copy, own in zip(copies, self.codecs, strict=True):
            copy.load_state_dict({key: x.cpu() for key, x in own.state_dict().items()})
        return copies

    def fill(self, step: int) -> None:
        """The gradients of a step."""
        for rank, x in enumerate(self.xs):
            generator = torch.Generator().manual_seed(1000 * step + rank)
            values = torch.randn(x.numel(), generator=generator)
            x.copy_(values * torch.randn(x.numel(), generator=generator).exp())

    def key(self, step: int) -> tuple[int, int]:
        return self.codecs[0].captured_key(Round(step, self.layout, 0, self.size, SEED))

    def run(
        self, step: int, codecs: Sequence[Codec] | None = None, capture: Capture | None = None
    ) -> list[Tensor]:
        """All ranks' means of one round, by the own codecs or others."""
        fabric, mailboxes = Fabric(partial(make_schedule, self._topology)), Mailboxes()
        results, tasks = dict[int, Tensor](), list[CollectiveTask]()

        def fail(error: BaseException) -> None:
            """Does nothing: `run_local` raises the error."""

        for rank, (codec, x) in enumerate(zip(codecs or self.codecs, self.xs, strict=True)):
            channel = LocalChannel(rank, self.size, 0, Traffic(), mailboxes)
            comm = ScheduledCollectives(channel, fabric, Arena(self.layout.device))
            this_round = Round(step, self.layout, rank, self.size, SEED, capture=capture)
            round_of_rank: Any = synchronization(codec, x, this_round, check_hashes=False, order=self.order)
            if self.scatters:
                round_of_rank = Scattering(codec, x, this_round, codec.shards(self.layout, comm.kept)[rank])
            tasks.append(CollectiveTask(round_of_rank(comm), partial(results.__setitem__, rank), fail))
        run_local(tasks, mailboxes, time.perf_counter)
        return [results[rank] for rank in range(self.size)]

    def end_step(self, step: int, skipped: bool = False) -> list[dict[str, float]]:
        """Ends a step for the own codecs, and returns what each logs."""
        return [dict(codec.skip_step(step) if skipped else codec.end_step(step)) for codec in self.codecs]

    def prepare(self, step: int) -> None:
        """Readies the own codecs for a capture."""
        for rank, codec in enumerate(self.codecs):
            codec.prepare_capture(Round(step, self.layout, rank, self.size, SEED))

    def captured(self, graph: Graph) -> CapturedRound:
        """The round of all ranks, captured in step 2; its result is all ranks' means."""
        for step in range(2):
            self.fill(step)
            self.run(step)
            self.end_step(step)
        self.prepare(2)
        captured = CapturedRound(graph, self.layout.device)
        captured.capture(lambda given, traffic: self.run(2, capture=given), Traffic())
        return captured


def states(rounds: Rounds) -> list[dict[str, Tensor]]:
    """All ranks' states; a value that nothing has set is zero."""
    return [
        {key: x.clone() for key, x in codec.state_dict().items() if x.count_nonzero()}
        for codec in rounds.codecs
    ]


def assert_equal(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for own, other in zip(found, expected, strict=True):
        assert own.keys() == other.keys()
        for key, x in own.items():
            assert torch.equal(x.view(torch.uint8), other[key].view(torch.uint8)), key


def assert_launches_keep_state(rounds: Rounds, plain: Rounds, graph: Graph) -> None:
    """Compares `rounds`, captured in `graph`, with the same ones of `plain`, which run step by step: over
    steps that count, are skipped, are run without the graph, and a state that is loaded."""
    captured = rounds.captured(graph)
    for step in range(2):
        plain.fill(step)
        plain.run(step)
        plain.end_step(step)
    saved = [{key: x.clone() for key, x in codec.state_dict().items()} for codec in plain.codecs]
    assert_equal(states(rounds), states(plain))
    for step in range(2, 10):
        if step == 7:
            for own, other, state in zip(rounds.codecs, plain.codecs, saved, strict=True):
                own.load_state_dict(state)
                other.load_state_dict(state)
        rounds.fill(step)
        plain.fill(step)
        expected = plain.run(step)
        if step == 5:
            found = rounds.run(step)
        else:
            captured.launch(rounds.key(step))
            found = captured.result
        for mean, wanted in zip(found, expected, strict=True):
            assert torch.equal(mean.view(torch.int32), wanted.view(torch.int32))
        logged = [each.end_step(step, skipped=step in (3, 6)) for each in (rounds, plain)]
        assert logged[0] == logged[1]
        assert_equal(states(rounds), states(plain))
