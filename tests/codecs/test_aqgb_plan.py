"""AQGB's plan and profile: ratios as the paper's formulas give them, and averages of what a rank has seen."""

from __future__ import annotations

import math
import random

import pytest

from gradwire.codecs.aqgb.plan import AgreedTimes, StepProfile, bits_of, make_plan
from gradwire.codecs.interface import Observation

BLOCK = 1_000_000
"""Coordinates: 4 MB at 32 bits."""


def agreed(
    rate: float, forward: tuple[float, ...] = (4.0, 3.9, 3.8), **given: tuple[int, ...]
) -> AgreedTimes:
    """Three blocks, a second apart, that the next forward pass could use from second 3.8 on."""
    return AgreedTimes(given.get("sizes", (BLOCK,) * 3), (1.0, 2.0, 3.0), forward, rate)


@pytest.mark.parametrize(("ratio", "bits"), [(0.125, 4), (1.0, 32), (0.1251, 5), (0.5, 16), (2 / 32, 2)])
def test_bits_are_no_fewer_than_the_ratio_says(ratio: float, bits: int) -> None:
    assert bits_of(ratio) == bits


def test_a_block_is_sent_until_the_next_one_appears() -> None:
    """At 2 MB/s half a block arrives in the second that it has: half the bits; the last goes at the floor."""
    made = make_plan(agreed(2e6), 0.125, 0.0)
    assert made.first == (16, 16, 4)
    assert made.end == pytest.approx(3 + BLOCK * 4 / 8 / 2e6)


def test_what_is_left_of_older_blocks_counts_for_the_next() -> None:
    """At 0.4 MB/s the floor's 0.5 MB take 1.25 s: a fifth of each block is left when the next appears, which
    goes first, so that twice as much waits for the last one."""
    made = make_plan(agreed(4e5), 0.125, 0.0)
    assert made.first == (4, 4, 4)
    assert made.end == pytest.approx(3 + (0.1e6 + 0.1e6 + 0.5e6) / 4e5)


def test_refinements_fill_the_time_until_blocks_are_used() -> None:
    rate, margin = 2e6, 0.02
    made = make_plan(agreed(rate, (4.6, 4.3, 4.0)), 0.125, margin)
    first_used = made.more[2] * BLOCK / 8 / rate  # the last block made is the first one used
    assert made.end + first_used >= 4.0 - margin > made.end + first_used - BLOCK / 8 / rate
    assert made.more[1] > 0 and made.more[0] > 0
    assert all(first + more <= 32 for first, more in zip(made.first, made.more, strict=True))


def test_no_time_means_no_refinement_and_no_limit_means_all() -> None:
    assert make_plan(agreed(2e6, (0.0, 0.0, 0.0)), 0.125, 0.0).more == (0, 0, 0)
    unlimited = make_plan(agreed(1e15), 0.125, 0.02)
    assert unlimited.first == (32, 32, 32) and unlimited.more == (0, 0, 0)


def test_the_floor_holds_whatever_is_drawn() -> None:
    drawn = random.Random(1)
    for _ in range(300):
        count = drawn.randint(1, 6)
        sizes = tuple(drawn.randint(1, 10**7) for _ in range(count))
        backward = tuple(sorted(drawn.uniform(0, 2) for _ in range(count)))
        forward = tuple(drawn.uniform(0, 4) for _ in range(count))
        floor = drawn.uniform(2 / 32, 1)
        made = make_plan(AgreedTimes(sizes, backward, forward, 10 ** drawn.uniform(1, 12)), floor, 0.02)
        assert all(bits >= min(32, math.floor(32 * floor)) for bits in made.first)
        assert all(0 <= more <= 32 - first for first, more in zip(made.first, made.more, strict=True))
        assert made.end >= backward[-1]


def seen(begin: float, wait: float) -> list[Observation]:
    """A step of two blocks: a forward pass of 1 and 2 seconds, which waits between them, and a backward pass
    of 3 and 4; each block's 300 bytes to each of two others take a second, one after another."""
    second = begin + 1 + wait
    back = second + 2
    return [
        Observation(0, "forward", 0, begin, begin + 1),
        Observation(1, "forward", 0, second, back),
        Observation(0, "compute", 0, begin, back + 3),
        Observation(1, "compute", 0, back + 3, back + 7),
        Observation(0, "all_gather", 600, back + 3, back + 4),
        Observation(1, "all_gather", 600, back + 7, back + 8),
        Observation(2, "all_gather", 999, back + 8, back + 9),
    ]


def test_a_profile_knows_when_blocks_are_there_and_could_be_used() -> None:
    profile = StepProfile(gain=0.5, rate_gain=1.0)
    profile.see(seen(0.0, 0.0), 2, 3, planned=False)
    assert (profile.backward, profile.forward, profile.rate) == ([3.0, 7.0], [], 300.0)
    profile.see(seen(0.5, 1.0), 2, 3, planned=True)
    assert profile.forward == [], "a step without a plan says nothing of it"
    profile.see(seen(0.5, 1.0), 2, 3, planned=True)
    assert profile.forward == [9.0, 8.0], "without the second that was waited"
    assert profile.backward == [3.0, 7.0] and profile.is_complete
    again = StepProfile(gain=0.5, rate_gain=1.0)
    again.load_state_dict(profile.state_dict())
    assert again == profile


def test_a_step_without_forward_passes_by_block_says_nothing() -> None:
    profile = StepProfile(gain=0.5, rate_gain=1.0)
    profile.see([one for one in seen(0.0, 0.0) if one.phase != "forward"], 2, 3, planned=False)
    assert not profile.is_complete and not profile.backward
