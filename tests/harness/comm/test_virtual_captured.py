"""A virtual cluster that captures a bucket's round on all ranks in one graph: runs are those step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import emulated_graph
import pytest
import torch
from emulated_graph import EmulatedGraph, RefusingGraph
from given_times import MarkedBy
from recorded import loads, outcome
from torch import Tensor
from training_jobs import tiny_run, train_all_virtually

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture, Layout, Round
from gradwire.codecs.native.loading import library
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import (
    SETTLING,
    Capturable,
    CapturedRounds,
    Identity,
)
from gradwire.harness.comm.transport.graph import GraphPool
from gradwire.harness.comm.world.captured_together import OTHER_BITS, RoundTogether
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission
from gradwire.harness.comm.world.process_captured import CapturedBuckets
from gradwire.harness.comm.world.started import Input
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.timing.trace.step import StepTrace

TICK = 1 / 1024
STEPS = 5
RUN = ("cluster=virtual", "measure.check_hashes=false", f"train.steps={STEPS}", "train.log_every=1")
MODELLED = ("network=simulated", "network.rate_mbit=20", "network.codec_times=none")
"""Work takes the ticks that it was marked with, messages what links need."""

CASES = [
    ("codec=dynamiq", "topology=ring", "cluster.workers=4"),
    ("codec=dynamiq", "topology=butterfly", "cluster.workers=3", "overlap.segments=2"),
    ("codec=dynamiq", "topology=two_level", "cluster.workers=4", "cluster.ranks_per_node=2"),
    ("codec=thc", "topology=butterfly", "cluster.workers=2"),
    ("codec=qsgd", "topology=ring", "cluster.workers=3"),
    ("codec=bf16", "topology=broadcast", "cluster.workers=3"),
    ("codec=bf16", "codec.ef=true", "topology=ring", "cluster.workers=3"),
    ("codec=mxfp8", "codec.ef=true", "topology=ring", "cluster.workers=3"),
]

pytestmark = pytest.mark.skipif(library("cpu") is None, reason="definitions take the key by value")

Capturing = Callable[[Callable[[], Any]], list[CapturedRounds]]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def every_mark_is_a_tick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside graphs and, in each launch, inside them."""
    ticks = count()
    clock = MarkedBy(lambda: next(ticks) * TICK)
    monkeypatch.setattr("gradwire.harness.comm.world.virtual.make_work_clock", lambda device: clock)

    def passed(mark: emulated_graph.HostMark) -> None:
        mark.at = next(ticks) * TICK

    monkeypatch.setattr(emulated_graph.HostMark, "passed", passed)
    return None


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    """Has later runs capture rounds in graphs of this kind; returns the list of what they keep."""

    def enable(make_graph: Callable[[], Any]) -> list[CapturedRounds]:
        made = list[CapturedRounds]()

        def make(graphs: str, device: torch.device) -> CapturedRounds | None:
            if graphs == "never":
                return None
            made.append(CapturedRounds(make_graph, device, required=graphs == "always"))
            return made[-1]

        monkeypatch.setattr("gradwire.harness.trainer.parts.make_captured_rounds", make)
        return made

    return enable


def trained(directory: Path, *overrides: str) -> Path:
    train_all_virtually(tiny_run(*RUN, *overrides), str(directory))
    return directory


def rows(directory: Path) -> list[dict[str, Any]]:
    """The steps with their times, except those of the real clock."""
    found = [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "wall_time_s"} for row in found]


def traces(directory: Path) -> dict[int, StepTrace]:
    return dict(timed_steps(directory))


def decisions(directory: Path) -> list[str]:
    """The decisions that steps followed, as the record has them."""
    path = directory / "decisions.jsonl"
    return path.read_text().splitlines()[1:] if path.exists() else []


def buckets(directory: Path) -> int:
    """The number of buckets of a rank."""
    return len(traces(directory)[0][0].tasks)


@pytest.mark.parametrize("overrides", CASES, ids=lambda case: "-".join(one.split("=")[1] for one in case))
def test_captured_rounds_are_those_step_by_step(
    overrides: tuple[str, ...],
    captures: Capturing,
    tmp_path: Path,
) -> None:
    """Losses, weights, bytes, traces, and the times on the simulated clock."""
    plain = trained(tmp_path / "plain", *MODELLED, *overrides)
    rounds = captures(EmulatedGraph)
    captured = trained(tmp_path / "captured", *MODELLED, *overrides)
    assert rounds[0].launches == (STEPS - SETTLING) * buckets(plain) > 1
    assert outcome(captured) == outcome(plain)
    assert rows(captured) == rows(plain)
    assert traces(captured) == traces(plain)
    assert decisions(captured) == decisions(plain)
    assert bool(decisions(plain)) == ("codec=mxfp8" in overrides)


@pytest.mark.parametrize(
    "weights", [(), ("parallel.weights=qwd", "parallel.main=algorithm4")], ids=["exact", "algorithm4"]
)
def test_scattered_buckets_are_captured_too(
    weights: tuple[str, ...], captures: Capturing, tmp_path: Path
) -> None:
    """And the weights of all ranks, also where main weights do not last."""
    overrides = (*MODELLED, "parallel=sharded", "codec=fp32", "topology=ring", "cluster.workers=3", *weights)
    plain, rounds = trained(tmp_path / "plain", *overrides), captures(EmulatedGraph)
    captured = trained(tmp_path / "captured", *overrides)
    assert rounds[0].launches >= 2 * (STEPS - SETTLING)
    about = load_run(captured).done.captured
    assert about is not None and about["refused"] == {"is no synchronization of a bucket": 1}, "the norm"
    assert outcome(captured) == outcome(plain) and rows(captured) == rows(plain)
    assert traces(captured) == traces(plain)


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case[0])
def test_a_resumed_run_captures_its_rounds_again(
    case: tuple[str, ...], captures: Capturing, tmp_path: Path
) -> None:
    """The second attempt has steps enough for a launch, and the first one's launches count in its record."""
    overrides = (*MODELLED, *case, "train.steps=8")
    plain = trained(tmp_path / "plain", *overrides)
    rounds, config, directory = captures(EmulatedGraph), tiny_run(*RUN, *overrides), tmp_path / "parts"
    for stop_after in (4, None):
        train_all_virtually(config, str(directory), stop_after)
    assert load_run(directory).done.resumed_after == [4]
    assert [each.launches for each in rounds] == [(4 - SETTLING) * buckets(plain)] * 2
    assert outcome(directory) == outcome(plain)
    assert rows(directory) == rows(plain)
    assert decisions(directory) == decisions(plain)


def test_what_cannot_be_captured_runs_step_by_step(
    captures: Capturing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A codec that decides on the host, hashes that are compared, a graph that refuses, and `never`."""
    made, overrides = captures(RefusingGraph), (*MODELLED, *CASES[0], "train.steps=4")
    plain = trained(tmp_path / "never", *overrides, "kernels.graphs=never")
    assert not made
    trained(tmp_path / "hashes", *overrides, "measure.check_hashes=true")
    trained(tmp_path / "powersgd", *MODELLED, "codec=powersgd", "cluster.workers=2", "train.steps=4")
    assert not caplog.messages
    refused = trained(tmp_path / "refused", *overrides)
    assert caplog.messages == [
        "gradwire: rounds do not run as CUDA graphs, because one cannot be captured: operation not permitted "
        "when stream is capturing"
    ]
    assert [each.launches for each in made] == [0, 0, 0]
    assert outcome(refused) == outcome(plain) and rows(refused) == rows(plain)


class LateGraph(EmulatedGraph):
    """A graph whose capture fails at its end, because memory is used up."""

    def capture(self, work: Callable[[], None], pool: GraphPool | None = None) -> None:
        super().capture(work, pool)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore words")


@pytest.mark.parametrize("case", [CASES[0], CASES[-2], CASES[-1]], ids=lambda case: case[0])
def test_a_capture_that_fails_late_changes_nothing(
    case: tuple[str, ...], captures: Capturing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The codec does again on the host what it has done in the capture."""
    overrides = (*MODELLED, *case)
    plain = trained(tmp_path / "plain", *overrides)
    rounds = captures(LateGraph)
    captured = trained(tmp_path / "captured", *overrides)
    assert rounds[0].launches == 0 and not list(rounds[0])
    assert [each.rpartition(": ")[2] for each in caplog.messages] == [
        "CUDA out of memory. Tried to allocate 20.00 MiB."
    ]
    assert outcome(captured) == outcome(plain) and rows(captured) == rows(plain)
    assert decisions(captured) == decisions(plain)
    about = load_run(captured).done.captured
    assert about is not None and about["captured"] == 0


SIZE, RING = 3, Fabric(partial(make_schedule, "ring"))


class Steps:
    """Steps of a world whose only bucket `given` makes from the step and the rank."""

    def __init__(
        self, rounds: CapturedRounds | None, given: Callable[[int, int], Tensor], is_own: bool
    ) -> None:
        self.world = VirtualWorld(SIZE, RING, CPU, captured=rounds)
        self.layout, self._given, self._is_own = Layout.flat(700), given, is_own
        self.codecs = [make_codec("dynamiq") for _ in range(SIZE)]
        self.seeds = [7] * SIZE

    async def _of_rank(self, step: int, rank_step: RankStep) -> list[float]:
        def make(x: Tensor) -> Collective[Tensor]:
            this_round = Round(step, self.layout, rank_step.rank, SIZE, self.seeds[rank_step.rank])
            return synchronization(self.codecs[rank_step.rank], x, this_round, check_hashes=False)

        submission = Submission("bucket", 700, is_own=self._is_own)
        x = self._given(step, rank_step.rank)
        mean = await rank_step.start(make, x, submission)
        return mean.tolist()

    def run(self, count: int) -> list[list[float]]:
        """The means of `count` steps, equal on all ranks."""
        means = []
        for step in range(count):
            results = self.world.run_step(
                step, dict.fromkeys(self.world.ranks, partial(self._of_rank, step))
            ).results
            assert all(own == results[0] for own in results.values())
            means.append(results[0])
            for codec in self.codecs:
                codec.end_step(step)
        return means


def gradient(step: int, rank: int) -> Tensor:
    return torch.randn(700, generator=torch.Generator().manual_seed(1000 * step + rank))


def test_inputs_are_kept_where_the_graph_reads_them() -> None:
    """Whatever memory the ranks' own buckets have."""
    rounds, expected = CapturedRounds(EmulatedGraph, CPU, required=True), Steps(None, gradient, False).run(7)
    steps = Steps(rounds, gradient, is_own=False)
    assert steps.run(7) == expected and rounds.launches == 7 - SETTLING
    per_step = {rank: traffic.total // 7 for rank, traffic in steps.world.traffic.items()}
    assert all(total > 0 for total in per_step.values())
    plain = Steps(None, gradient, is_own=False)
    plain.run(7)
    for rank in range(SIZE):
        assert steps.world.traffic[rank].by_phase == plain.world.traffic[rank].by_phase


def test_buckets_of_the_ranks_own_are_captured_where_they_are() -> None:
    """In memory that stays; elsewhere the round runs step by step."""
    expected = Steps(None, gradient, is_own=True).run(6)
    places, kept = [torch.empty(700) for _ in range(SIZE)], []

    def stays(step: int, rank: int) -> Tensor:
        return places[rank].copy_(gradient(step, rank))

    def moves(step: int, rank: int) -> Tensor:
        kept.append(gradient(step, rank))
        return kept[-1]

    for given, launches in ((stays, 6 - SETTLING), (moves, 0)):
        rounds = CapturedRounds(EmulatedGraph, CPU, required=True)
        assert Steps(rounds, given, is_own=True).run(6) == expected
        assert rounds.launches == launches


def test_rounds_with_other_random_bits_on_a_rank_are_not_captured() -> None:
    rounds = CapturedRounds(EmulatedGraph, CPU, required=True)
    ranks = {rank: Keyed((1, rank)) for rank in range(2)}
    submission = Submission("bucket", 3)
    inputs = {rank: Input(0, lambda x: None, 0, None, submission) for rank in ranks}  # type: ignore[arg-type, return-value]
    assert RoundTogether(0, ranks, inputs).identity() == OTHER_BITS
    ranks[1] = Keyed((1, 0))
    same, other = (RoundTogether(bucket, ranks, inputs).identity() for bucket in (0, 1))
    assert isinstance(same, Identity) and same != other
    assert RoundTogether(0, ranks, inputs).identity() == same
    assert rounds.launches == 0


class Keyed(Capturable):
    """A round that only has a key and an identity."""

    def __init__(self, key: Key) -> None:
        self._key = key

    @property
    def key(self) -> Key:
        return self._key

    def identity(self) -> Identity:
        return Identity("a bucket", 5)

    def refusal(self) -> str | None:
        return None

    def captured(self, capture: Capture) -> Any:
        raise AssertionError("it is not captured")


def test_required_graphs_are_an_error_where_a_round_allows_none() -> None:
    rounds = CapturedRounds(RefusingGraph, CPU, required=True)
    with pytest.raises(RuntimeError, match=r"^a round cannot be captured in a CUDA graph: operation not"):
        Steps(rounds, gradient, is_own=False).run(4)


def test_a_world_that_forgets_captures_anew() -> None:
    made: list[EmulatedGraph] = []

    def make() -> EmulatedGraph:
        made.append(EmulatedGraph())
        return made[-1]

    rounds = CapturedRounds(make, CPU, required=True)
    steps = Steps(rounds, gradient, is_own=False)
    first = steps.run(4)
    steps.world.forget()
    assert steps.run(4) == first
    assert len(made) == 2 and rounds.launches == 2 * (4 - SETTLING)
    assert steps.world.captured_buckets() == CapturedBuckets(1, 1, {}, 1, None, made[1].marks)
    assert all(graph.marks > SIZE for graph in made)
    steps.world.close()


def test_the_record_says_why_a_bucket_is_not_captured() -> None:
    rounds = CapturedRounds(EmulatedGraph, CPU, required=False)
    steps = Steps(rounds, gradient, is_own=False)
    steps.codecs = [make_codec("powersgd") for _ in range(SIZE)]
    steps.run(3)
    (reason,) = (codec.refuses_capture(steps.layout) for codec in steps.codecs[:1])
    assert steps.world.captured_buckets() == CapturedBuckets(1, 0, {reason: 1})
    assert VirtualWorld(SIZE, RING, CPU).captured_buckets() is None
