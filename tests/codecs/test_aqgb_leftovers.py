"""AQGB's leftovers: what is left of a block as another appears keeps its bits, or gets the new block's."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from aqgb_ranks import SIZE, Ranks, times
from codec_rounds import CPU, gradients, layout_of
from torch import Tensor

from gradwire.codecs.aqgb.codec import AQGB
from gradwire.codecs.aqgb.encoding import Encoding
from gradwire.codecs.aqgb.payload import Payload, mean_of, plane_of
from gradwire.codecs.aqgb.pieces import BlockPiece, coarsest, more_of, pieces_of
from gradwire.codecs.aqgb.plan import AgreedTimes, make_plan
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.interface import Decision, Layout, Round
from gradwire.codecs.registry import make_codec

MILLION, PARTITION = 1_000_000, 1024
LARGE = layout_of({"a": (700,), "b": (50, 7)})
"""A block of 1050 coordinates: four partitions of 256 and a short one."""


def test_what_is_left_gets_the_bits_of_the_block_that_appears() -> None:
    """At 0.4 MB/s four fifths of the first block, at the floor, arrive before the second appears, four
    seconds before the last. That makes a ratio of a third, 11 bits, for all of 1.2 million coordinates;
    block 1 and most of what is left get there in time. The rest goes at the floor, as the last block does."""
    agreed = AgreedTimes((MILLION,) * 3, (1.0, 2.0, 6.0), (0.0,) * 3, 4e5)
    assert make_plan(agreed, 0.125, 0.0).first == (4, 11, 4)
    made = make_plan(agreed, 0.125, 0.0, partition=PARTITION)
    assert made.first == (4, 11, 4)
    now = -(-800_000 // PARTITION) * PARTITION
    later = -(-(4 * 4e5 - MILLION * 11 / 8) * 8 / 11 // PARTITION) * PARTITION
    assert made.split == (now, later, MILLION - now - later, 0, MILLION, 0, 0, 0, MILLION)
    assert [piece.bits for piece in pieces_of(made.first, made.split, 0, MILLION)] == [4, 11, 4]
    assert made.end == pytest.approx(6 + (MILLION + made.split[2]) * 4 / 8 / 4e5)


def test_a_split_has_every_coordinate_once_whatever_is_drawn() -> None:
    drawn, split_blocks = random.Random(2), 0
    for _ in range(300):
        count = drawn.randint(1, 6)
        sizes = tuple(drawn.randint(1, 10**7) for _ in range(count))
        backward = tuple(sorted(drawn.uniform(0, 2) for _ in range(count)))
        forward = tuple(drawn.uniform(0, 9) for _ in range(count))
        agreed = AgreedTimes(sizes, backward, forward, 10 ** drawn.uniform(4, 9))
        encoding = Encoding(drawn.choice(("embedded", "plain")))
        made = make_plan(agreed, drawn.uniform(2 / 32, 1), 0.02, encoding, partition=PARTITION)
        decision = {"first": list(made.first), "more": list(made.more), "split": list(made.split)}
        codec = AQGB(base=encoding.base, leftovers="requantized")
        assert codec.refuses_decision({**decision, "deadlines": [0.0] * count, "sent": [0] * count}) is None
        for block, size in enumerate(sizes):
            pieces = pieces_of(made.first, made.split, block, size)
            assert sum(piece.numel for piece in pieces) == size
            split_blocks += len(pieces) > 1
            for bits in {piece.bits for piece in pieces}:
                follow = more_of(bits, coarsest(pieces), made.more[block], encoding)
                assert 0 <= follow <= 32 - bits and (not follow or follow >= encoding.least_more(bits))
    assert split_blocks > 50


def test_refinements_of_pieces_fill_the_time_until_their_block_is_used() -> None:
    """Pieces get equal shares of what each lacks of 32 bits: 7 bits more of 11 than of 18."""
    agreed = AgreedTimes((MILLION,) * 3, (1.0, 2.0, 6.0), (40.0, 9.0, 9.0), 4e5)
    made = make_plan(agreed, 0.125, 0.0, partition=PARTITION)
    pieces = pieces_of(made.first, made.split, 0, MILLION)
    sent = sum(more_of(bits, 4, made.more[0], Encoding()) * numel for numel, bits in pieces) / 8
    assert made.more[0] == 28 and sent == sum((32 - bits) * numel for numel, bits in pieces) / 8
    assert [more_of(bits, 4, 14, Encoding()) for bits in (4, 11, 31, 32)] == [14, 11, 1, 0]
    assert more_of(6, 4, 10, Encoding("plain")) == 10 and more_of(8, 4, 10, Encoding("plain")) == 0


def test_a_piece_is_refined_though_a_coarser_one_cannot_be() -> None:
    """Fewer than 10 bits refine 12 bits of a floating-point number, and no 4: those stay as they are."""
    codec = AQGB(base="plain", leftovers="requantized", partition=256)
    decision = split_into((512, 538), (4, 12), 7)
    both: dict[str, Any] = {"sent": [0, 0], "split": [512, 538, 0, 70]}  # with a row of the second block
    assert codec.refuses_decision({**decision, **both}) is None
    alone = {**split_into((512, 538), (4, 4), 7), **both}
    assert codec.refuses_decision(alone) == "more is 7 of a block of 4 bits, which 10 refine"
    ranks, xs = Ranks(base="plain", leftovers="requantized", partition=256), gradients(LARGE, SIZE)
    coarse = ranks.synchronize(xs, decision)
    refined = expected(xs, [(512, 4, 0), (538, 12, 5)], ranks.key, base="plain")
    assert torch.equal(ranks.refine(coarse), refined) and not torch.equal(coarse, refined)


def test_neighbours_with_the_same_bits_are_one_piece() -> None:
    assert pieces_of((4, 4, 8), (256, 512, 90, 0, 70, 0, 0, 0, 5), 0, 858) == [
        BlockPiece(768, 4),
        BlockPiece(90, 8),
    ]
    assert pieces_of((4, 8), (), 1, 70) == [BlockPiece(70, 8)]


def split_into(
    rows: tuple[int, ...], first: tuple[int, ...], more: int, sent: tuple[int, ...] = ()
) -> Decision:
    """A decision in which the first block has these coordinates of each of these bits. The others are those
    of blocks that this round has nothing of."""
    others = len(first) - 1
    told: dict[str, list[int]] = {"followed/sent": list(sent)} if sent else {}
    return {
        "first": list(first),
        "more": [more, *[0] * others],
        "deadlines": [1.0] * len(first),
        "sent": [],
        "split": [*rows, *[0] * len(first) * others],
        **told,
    }


def expected(
    xs: list[Tensor], pieces: list[tuple[int, int, int]], key: tuple[int, int], **options: Any
) -> Tensor:
    """The mean if each piece is a block of its own, cut to its bits at once and refined at once: `pieces` has
    the coordinates of each, its bits, and those that follow."""
    encoding, means, begin = Encoding(options.get("base", "embedded"), options.get("scale", "block")), [], 0
    for numel, bits, more in pieces:
        parts = []
        for rank, x in enumerate(xs):
            own = x[begin : begin + numel]
            bits_of_rank = CoordinateBits(key, rank) if "rounding" in options else None
            payload = Payload.of(own, bits, encoding, bits_of_rank, begin)
            if more:
                cut = own if payload.rounding is None else payload.rounding.dithered(own)
                longer = encoding.refined(bits, more)
                payload.refine(plane_of(cut, bits, longer, encoding), longer)
            parts.append(payload)
        means.append(mean_of(parts, CPU))
        begin += numel
    return torch.cat(means)


BASES = [{}, {"base": "plain"}, {"base": "plain", "rounding": "stochastic"}]


@pytest.mark.parametrize("options", BASES, ids=["embedded", "plain", "rounded"])
@pytest.mark.parametrize("step_bits", [3, 8, 32])
def test_pieces_are_cut_and_refined_each_to_its_bits(options: dict[str, str], step_bits: int) -> None:
    """With 4 bits of a piece and 14 more, another one of 12 gets 10 more, and one in full none."""
    ranks = Ranks(leftovers="requantized", partition=256, step_bits=step_bits, **options)
    xs = gradients(LARGE, SIZE)
    coarse = ranks.synchronize(xs, split_into((512, 256, 282), (4, 12, 32), 14))
    cut = [(512, 4, 0), (256, 12, 0), (282, 32, 0)]
    assert torch.equal(coarse, expected(xs, cut, ranks.key, **options))
    refined = [(512, 4, 14), (256, 12, 10), (282, 32, 0)]
    assert torch.equal(ranks.refine(coarse), expected(xs, refined, ranks.key, **options))


@pytest.mark.parametrize("options", BASES, ids=["embedded", "plain", "rounded"])
def test_whoever_is_late_sends_less_of_every_piece_and_a_replay_the_same(options: dict[str, str]) -> None:
    given: dict[str, Any] = {**options, "leftovers": "requantized", "partition": 256, "step_bits": 10}
    late, xs = Ranks(**given), gradients(LARGE, SIZE)
    rows, first = (512, 256, 282), (4, 12, 32)
    refined = late.refine(
        late.synchronize(xs, split_into(rows, first, 14)), [times(0.0), times(0.9, 1.1), times(2.0)]
    )
    assert [codec._sent[5][0] for codec in late.codecs] == [[14, 10, 0]] * SIZE
    again = Ranks(**given)
    coarse = again.synchronize(xs, split_into(rows, first, 14, (14, 10, 0)))
    assert torch.equal(again.refine(coarse, [times(9.0)] * SIZE), refined)
    assert not torch.equal(refined, coarse)


def test_where_the_ratio_stays_leftovers_are_the_same_in_the_same_messages() -> None:
    kept, requantized = Ranks(), Ranks(leftovers="requantized", partition=256)
    xs, decision = gradients(LARGE, SIZE), split_into((512, 256, 282), (6, 6, 6), 9)
    means = []
    for ranks in (kept, requantized):
        mean = ranks.synchronize(xs, decision if ranks is requantized else {**decision, "split": []})
        means.append((mean, ranks.refine(mean)))
    assert all(torch.equal(*pair) for pair in zip(*means, strict=True))
    sent = [[dict(own.by_phase) for own in ranks.world.traffic.values()] for ranks in (kept, requantized)]
    assert sent[0] == sent[1]


def test_every_piece_counts_with_its_bits() -> None:
    codec = Ranks(leftovers="requantized", partition=256)
    codec.synchronize(gradients(LARGE, SIZE), split_into((512, 538), (4, 16), 0))
    assert codec.codecs[0].end_step(5)["ratio"] == pytest.approx((512 * 4 + 538 * 16) / 1050 / 32)
    assert codec.codecs[0].activity()["at_bound"] == pytest.approx(512 / 1050)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"leftovers": "sent"}, r"codec.leftovers=sent: choose one of kept, requantized"),
        (
            {"leftovers": "requantized", "bits": 8},
            r"codec.leftovers=requantized: choose one of kept \(codec.bits=8 replaces AQGB's plan",
        ),
        ({"floor": 0.25, "bits": 8}, r"codec.floor=0.25: choose one of 0.125 \(codec.bits=8 replaces"),
        ({"bits": 8, "base": "plain", "step_bits": 4}, r"codec.step_bits=4: choose one of 8 \(codec.bits=8"),
    ],
)
def test_refusals(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AQGB(**given)


def test_a_round_without_a_plan_is_one_piece_in_full() -> None:
    ranks, xs = Ranks(leftovers="requantized"), gradients(LARGE, SIZE)
    empty: Decision = {"first": [], "more": [], "deadlines": [], "sent": [], "split": []}
    assert torch.equal(ranks.synchronize(xs, empty), expected(xs, [(1050, 32, 0)], ranks.key))


SPLIT_BLOCKS = {
    "first": [4, 6],
    "more": [8, 0],
    "deadlines": [0.5, -0.1],
    "sent": [8, 8, 0, 0],
    "split": [256, 10, 0, 70],
}

WRONG_SPLITS = [
    ([256, 10, 0], "split has 3 numbers, and 2 blocks have 4"),
    ([256, 10, 1, 69], "split has coordinates of block 1 before it appears"),
    ([0, 0, 0, 70], "split has no coordinates of block 0"),
    ([250, 16, 0, 70], "split has 250 coordinates of block 0, no multiple of codec.partition=256"),
    ([256, -1, 0, 70], "split has -1, not a list of whole numbers from 0 to "),
]


@pytest.mark.parametrize(("split", "said"), WRONG_SPLITS)
def test_blocks_that_cannot_be_split_so_are_refused(split: list[int], said: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    options: dict[str, Any] = {"decisions": str(path), "leftovers": "requantized", "partition": 256}
    for row in (SPLIT_BLOCKS, {**SPLIT_BLOCKS, "split": split}):
        lines = [{"steps": None, "settings": {}}, {"step": 1, **row}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if row is SPLIT_BLOCKS:
            make_codec("aqgb", **options)
            with pytest.raises(ValueError, match="decides .*split, but codec=aqgb decides "):
                make_codec("aqgb", decisions=str(path))
            continue
        with pytest.raises(ValueError) as refused:
            make_codec("aqgb", **options)
        assert str(refused.value).startswith(f"codec.decisions={path}: line 2: {said}"), refused.value


def test_a_followed_split_is_of_the_coordinates_that_there_are() -> None:
    aqgb = AQGB(leftovers="requantized", partition=256)
    this_round = Round(3, Layout.flat(1), 0, 2, 0)
    for sizes, said in (((266, 70), None), ((266, 71), "split has 70 coordinates of block 1, which has 71")):
        aqgb._sizes = dict(enumerate(sizes))
        assert aqgb.refuses_in(SPLIT_BLOCKS, this_round) == said
