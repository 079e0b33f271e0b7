"""Numbers that all ranks agree on, and the decisions that follow: equal on all ranks, one step late."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from codec_rounds import MODEL, TAIL, Cluster
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback
from gradwire.codecs.aqgb.codec import AQGB
from gradwire.codecs.collectives import Collectives, Op
from gradwire.codecs.decision_file import DecisionFile
from gradwire.codecs.describe import describe_codec
from gradwire.codecs.edgc.rank_control import Control, RankPlan
from gradwire.codecs.exact import FP32
from gradwire.codecs.interface import Codec, Decision, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.codecs.traits import Traits
from gradwire.codecs.wrappers.decisions import Decisions, with_decisions
from gradwire.codecs.wrappers.exclude import Exclude
from gradwire.codecs.wrappers.feedback import ErrorFeedback

LARGE = 2**53
"""From here on float64 does not distinguish neighbouring integers."""


@dataclass
class Counting(Codec, Adapts):
    """Adds up `number` of each step and rank, and decides by the sums; its result is the gradient itself."""

    name: str = "counting"
    metadata: bool = True
    """True if it reduces metadata of its own."""
    refuses_step: int | None = None
    """The step whose decision it refuses to follow from a file."""

    traits = Traits(stateful=True)
    first_decision = {"sums": (0, 0), "largest": 0.0}

    def __post_init__(self) -> None:
        self.counted = 0
        self.seen: list[tuple[int, int, Decision]] = []

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        self.counted += number(this_round.step, this_round.rank)
        self.seen.append((this_round.step, this_round.bucket, this_round.decision))
        if self.metadata:
            (ones,) = await comm.reduce([(torch.ones(1), "sum")])
            assert ones.item() == this_round.size
        return x.clone()

    def feedback(self) -> Feedback:
        return {
            "counts": (torch.tensor([self.counted, LARGE * bool(self.counted) + 1]), "sum"),
            "peak": (torch.tensor([float(self.counted)]), "max_bits"),
        }

    def decide(self, agreed: Agreed) -> Decision:
        sums = agreed.feedback["counts"].tolist()
        return {"sums": sums, "largest": float(agreed.feedback["peak"])}

    def refuses_in(self, decision: Decision, this_round: Round) -> str | None:
        return "it does not fit" if this_round.step == self.refuses_step else None

    def end_step(self, step: int) -> Mapping[str, float]:
        self.counted = 0
        return {}


def number(step: int, rank: int) -> int:
    """The counts of rank `rank` in a bucket of step `step`."""
    return 1 + (7919 * step + 104729 * rank) % 1000


def expected(step: int, size: int, buckets: int) -> Decision:
    """The decision for step `step`: the numbers of the last step but one."""
    if step == 0:
        return Counting.first_decision
    if step == 1:
        return {"sums": [0, size], "largest": 0.0}
    counted = [buckets * number(step - 2, rank) for rank in range(size)]
    return {"sums": [sum(counted), size * (LARGE + 1)], "largest": float(max(counted))}


class Exchange:
    """Collectives of one of several ranks whose coroutines `lockstep` runs."""

    num_chunks = 1

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.calls = rank, size, 0

    async def reduce(self, parts: Sequence[tuple[Tensor, Op]]) -> list[Tensor]:
        self.calls += 1
        return await _Yield(parts)


class _Yield:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Any:
        return (yield self._value)


def lockstep(coroutines: Sequence[Any]) -> list[Tensor]:
    """Runs the same coroutine of all ranks; what they reduce is combined in the order of the ranks."""
    given: list[Any] = [None] * len(coroutines)
    while True:
        asked, results = [], []
        for coroutine, values in zip(coroutines, given, strict=True):
            try:
                asked.append(coroutine.send(values))
            except StopIteration as ended:
                results.append(ended.value)
        if results:
            assert not asked, "ranks do different things"
            return results
        given = [[combined(each) for each in zip(*asked, strict=True)]] * len(coroutines)


def combined(parts: Sequence[tuple[Tensor, Op]]) -> Tensor:
    values, op = torch.stack([value for value, _ in parts]), parts[0][1]
    return values.amax(0) if op == "max_bits" else values.sum(0)


class Ranks:
    """`size` ranks that synchronize two buckets of one coordinate a step."""

    def __init__(self, size: int, followed: DecisionFile | None = None, **options: Any) -> None:
        self.counting = [Counting(**options) for _ in range(size)]
        self.codecs = [with_decisions(codec, followed) for codec in self.counting]
        self.step = 0
        self.calls = 0

    def run(self, *, skip: bool = False, order: Sequence[int] = (0, 1)) -> None:
        size, x = len(self.codecs), torch.zeros(1)
        for bucket in order:
            comms = [Exchange(rank, size) for rank in range(size)]
            rounds = [Round(self.step, Layout.flat(1), rank, size, 0, bucket) for rank in range(size)]
            lockstep(
                [
                    codec.synchronize(x, each, cast(Collectives, comm))
                    for codec, each, comm in zip(self.codecs, rounds, comms, strict=True)
                ]
            )
            self.calls += comms[0].calls
        for codec in self.codecs:
            (codec.skip_step if skip else codec.end_step)(self.step)
        self.step += 1

    def followed(self) -> list[tuple[int, int, Decision]]:
        """(step, bucket, decision) of all rounds so far, which all ranks have alike."""
        found = [codec.seen for codec in self.counting]
        assert all(seen == found[0] for seen in found)
        for codec in self.counting:
            codec.seen = []
        return found[0]


def plain(decision: Decision) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, Sequence) else value for name, value in decision.items()}


def test_ten_thousand_steps_agree_on_all_ranks_one_step_late() -> None:
    """They agree after a resumption every 2,500 steps, too, and whichever bucket comes first."""
    ranks = Ranks(3)
    for step in range(10_000):
        if step % 2500 == 1234:
            states = [codec.state_dict() for codec in ranks.codecs]
            resumed = Ranks(3)
            for codec, state in zip(resumed.codecs, states, strict=True):
                codec.load_state_dict({key: value.clone() for key, value in state.items()})
            resumed.step, ranks = step, resumed
        ranks.run(order=(0, 1) if step % 2 else (1, 0))
        for number_of_step, _, decision in ranks.followed():
            assert number_of_step == step
            assert plain(decision) == plain(expected(step, 3, 2))


def test_the_numbers_travel_with_the_first_metadata() -> None:
    carried, alone = Ranks(2), Ranks(2, metadata=False)
    for _ in range(5):
        carried.run()
        alone.run()
    assert carried.calls == 5 * 2, "one reduction for each bucket, as without them"
    assert alone.calls == 5, "one message of their own, where there is nothing to travel with"
    assert carried.followed() == alone.followed()


def test_a_skipped_step_is_as_if_it_had_not_been() -> None:
    skipping, straight = Ranks(2), Ranks(2)
    for step in range(6):
        skipping.step = straight.step = step
        before = [codec.state_dict() for codec in skipping.codecs]
        for skipped in range(step % 3):
            skipping.step = 100 + skipped
            skipping.run(skip=True)
            after = [codec.state_dict() for codec in skipping.codecs]
            assert all(same(a, b) for a, b in zip(before, after, strict=True))
        skipping.step = step
        skipping.run()
        straight.run()
        assert all(
            same(a.state_dict(), b.state_dict())
            for a, b in zip(skipping.codecs, straight.codecs, strict=True)
        )
    counted = [each for each in skipping.followed() if each[0] < 100]
    assert counted == straight.followed()


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        value.dtype == b[key].dtype and torch.equal(value, b[key]) for key, value in a.items()
    )


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
def test_on_every_topology_beside_excluded_parameters(topology: str) -> None:
    """The first bucket's parameters are all excluded: nothing of it reaches the codec."""
    size, steps = 3, 6
    cluster = Cluster(size, topology, "fp32")
    counting = [Counting() for _ in range(size)]
    cluster.codecs = [with_decisions(Exclude(codec, ["body.*", "head.*", "norm"])) for codec in counting]
    for step in range(steps):
        cluster.step((MODEL, [torch.ones(MODEL.numel)] * size), (TAIL, [torch.ones(TAIL.numel)] * size))
        for codec in counting:
            ((_, bucket, decision),) = codec.seen
            assert bucket == 1 and plain(decision) == plain(expected(step, size, 1))
            codec.seen = []


def test_a_codec_that_decides_itself_is_described_as_before() -> None:
    """States that scripts have saved are compared with these words."""
    described = describe_codec(make_codec("mxfp8", ef=True))
    assert described["codec.ef"] == "True" and "codec.decisions" not in described


def test_only_codecs_that_adapt_are_wrapped() -> None:
    assert type(with_decisions(FP32())) is FP32
    wrapped = with_decisions(Counting())
    assert isinstance(wrapped, Decisions) and with_decisions(wrapped) is wrapped
    with pytest.raises(ValueError, match="codec=counting reports no loss"):
        ErrorFeedback(Counting())


@dataclass
class Growing(Counting):
    """A codec with as many numbers as it has counts for, none when new."""

    name: str = "growing"
    first_decision = {"limits": ()}

    def feedback(self) -> Feedback:
        return {
            "counts": (torch.tensor([self.counted] * 3 if self.counted else [], dtype=torch.int64), "sum")
        }

    def decide(self, agreed: Agreed) -> Decision:
        return {"limits": agreed.feedback["counts"].tolist()}


def test_numbers_that_are_none_at_first_may_become_any() -> None:
    """A warm-up has used the codec when a new one's state is restored."""
    codec = with_decisions(Growing())
    new = codec.state_dict()
    assert [value.numel() for value in new.values()] == [0, 0]
    for step in range(3):
        comm = cast(Collectives, Exchange(0, 1))
        lockstep([codec.synchronize(torch.zeros(1), Round(step, Layout.flat(1), 0, 1, 0), comm)])
        codec.end_step(step)
    grown = codec.state_dict()
    assert [value.numel() for value in grown.values()] == [3, 3]
    for state in (new, grown):
        codec.load_state_dict(state)
        assert same(codec.state_dict(), state)


def test_names_that_mean_two_things_are_refused() -> None:
    class Clashing(Counting):
        first_decision = {"counts": (0,)}

    with pytest.raises(ValueError, match="codec=counting: counts names two things"):
        with_decisions(Clashing())

    class Numbered(Counting):
        first_decision = {"step": (0,)}

    with pytest.raises(ValueError, match="a decision called step has the name of a line's number"):
        with_decisions(Numbered())


BLOCKS = {"first": [4, 32], "more": [8, 0], "deadlines": [0.5, -0.1], "sent": [8, 8, 0, 0]}
PLAN = RankPlan(1, 8, controls=(Control(0, 64, 32, 2, 4, 1.5, 0.0, 8, -math.inf),)).decision()

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("aqgb", {**BLOCKS, "first": []}, "first, more and deadlines are of 0, 2 and 2 blocks"),
    ("aqgb", {**BLOCKS, "first": [33, 4]}, "first has 33, not a list of whole numbers from 2 to 32"),
    ("aqgb", {**BLOCKS, "first": [4.5, 4]}, "first has 4.5, not a list of whole numbers from 2 to 32"),
    ("aqgb", {**BLOCKS, "more": [8, 1]}, "first and more are above 32 bits of a block together"),
    ("aqgb", {**BLOCKS, "deadlines": [math.nan, 0]}, "deadlines has nan, not a list of numbers"),
    ("aqgb", {**BLOCKS, "sent": []}, "sent has 0 numbers, not one for each block and rank"),
    ("aqgb", dict.fromkeys(BLOCKS, []), "sent has 0 numbers, not one for each block and rank"),
    ("aqgb", {**BLOCKS, "more": [10**400, 0]}, "more has "),
    ("edgc", {**PLAN, "rank": []}, "its lists are of different lengths"),
    ("edgc", {**PLAN, "rank": [-7]}, "rank has -7, not a list of whole numbers from 0 to 65536"),
    ("edgc", {**PLAN, "rank": [1e308]}, "rank has 1e+308, not"),
    (
        "edgc",
        {**PLAN, "entropy": [math.inf]},
        "entropy has inf, not a list of numbers from -1000 to 1000, or ",
    ),
    ("edgc", {**PLAN, "compressing": [1]}, "compressing is a list, not a whole number from 0 to 1"),
    ("edgc", {**PLAN, "seconds": math.nan}, "seconds has nan"),
    ("edgc", {**RankPlan(1).decision()}, "it compresses, but has no rank"),
    ("mxfp8", {"mu": [1.0, 0.5]}, "mu has 0.5, which is less than codec.mu_minimum=1"),
    ("mxfp8", {}, "decides nothing, but codec=mxfp8 decides mu"),
]


@pytest.mark.parametrize(("codec", "decision", "said"), WRONG)
def test_what_a_codec_cannot_have_decided_is_refused_with_its_line(
    codec: str, decision: dict[str, Any], said: str, tmp_path: Path
) -> None:
    right = {"aqgb": BLOCKS, "edgc": PLAN, "mxfp8": {"mu": [2.0, 1.0]}}[codec]
    path = tmp_path / "decisions.jsonl"
    for rows in ([right, right], [right, decision]):
        lines = [
            {"steps": None, "settings": {}},
            *({"step": n, **row} for n, row in enumerate(rows, start=1)),
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if rows[1] is right:
            make_codec(codec, decisions=str(path))
            continue
        with pytest.raises(ValueError) as refused:
            make_codec(codec, decisions=str(path))
        assert str(refused.value).startswith(f"codec.decisions={path}: line 3: {said}"), refused.value
        assert len(str(refused.value)) < 400 + len(str(path)) and str(refused.value).isprintable()


@pytest.mark.parametrize("refused", [None, -1, 0, 1, 2, 3])
def test_decisions_are_followed_and_checked_from_the_first_step_on(refused: int | None) -> None:
    """The first step follows the codec's first decision, and passes before it what the codec decides."""
    rows: list[dict[str, Any]] = [{"sums": [step, -step], "largest": 0.5 * step} for step in range(1, 5)]
    file = DecisionFile("codec.decisions=f", Path("f"), "1", {}, [json.dumps(row).encode() for row in rows])
    ranks = Ranks(1, file, refuses_step=refused)
    ranks.step = -1
    for step in range(-1, 4):
        if step == refused and step > 0:
            with pytest.raises(ValueError, match=f"codec.decisions=f: line {step + 1}: it does not fit; "):
                ranks.run()
            return
        ranks.run()
        (_, _, decision), *_ = ranks.followed()
        if step == 0:
            assert plain(decision) == {"sums": [0, 1], "largest": 0.0}, "decided in the pass before"
        elif step > 0:
            assert decision == rows[step - 1]


@dataclass
class Allowing(Counting):
    """A codec that allows captures and has to look at every step's decision."""

    def refuses_capture(self, layout: Layout) -> str | None:
        return None


def test_a_file_that_is_checked_in_every_step_allows_no_capture() -> None:
    layout, row = Layout.flat(1), json.dumps({"sums": [1, 1], "largest": 0.0}).encode()
    file = DecisionFile("codec.decisions=f", Path("f"), "1", {}, [row])
    assert with_decisions(Allowing()).refuses_capture(layout) is None
    said = with_decisions(Allowing(), file).refuses_capture(layout)
    assert said == "codec=counting checks in every step whether it can follow codec.decisions"
    said = with_decisions(Counting()).refuses_capture(layout)
    assert said is not None and "does not do the same" in said


def test_a_followed_decision_is_about_the_blocks_that_there_are() -> None:
    codec = make_codec("aqgb")
    assert isinstance(codec, Decisions)
    aqgb = cast(AQGB, codec.inner)
    this_round = Round(3, Layout.flat(1), 0, 2, 0)
    for blocks, size, said in ((2, 2, None), (3, 2, "this run has 3"), (2, 3, "2 blocks and 3 ranks have 6")):
        aqgb._sizes = dict.fromkeys(range(blocks), 10)
        assert (said or "None") in str(aqgb.refuses_in(BLOCKS, replace(this_round, size=size)))
