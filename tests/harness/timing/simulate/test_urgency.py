"""Messages that go first: strict levels on links, the order on a connection, giving way at boundaries."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from lanes import Said, rank, starts
from reference_engine import run_reference
from simulated_steps import ends, post, receiving, task, wait

from gradwire.harness.network.links import Links, star, uplinks
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.step import ORDINARY, TaskTrace, Urgency, step_end

EXACT = 1e-12
RATE, LATENCY_S = 7.3, 0.013
FRACTIONS: Any = (Fraction(7, 3), Fraction(1, 11))

BASE, REFINEMENT = Urgency(0), Urgency(1)


def sending(target: int, num_bytes: int, bucket: int, urgency: Urgency = ORDINARY) -> TaskTrace:
    return task(post([(target, num_bytes)])._replace(urgency=urgency), wait(), bucket=bucket)


def close(seconds: float) -> object:
    return pytest.approx(seconds, abs=EXACT, rel=0)


def to_one_rank(
    sizes: list[int], urgencies: list[Urgency], ready: list[Any], links: Links, engine: Any = run
) -> list[Any]:
    """Ranks 0, 1, … each send the last one a message, each when it is ready; when each arrives."""
    last = len(sizes)
    tasks: dict[int, tuple[TaskTrace, ...]] = {
        each: (sending(last, size, each, urgencies[each]),) for each, size in enumerate(sizes)
    }
    tasks[last] = tuple(receiving(each, size, each) for each, size in enumerate(sizes))
    begins: dict[Any, Any] = {(each, each): at for each, at in enumerate(ready)}
    begins |= {(last, each): ready[0] * 0 for each in range(last)}
    found = ends(tasks, links, ready=begins, in_flight=last, engine=engine)
    return [found[each, each] for each in range(last)]


def on_a_connection(
    sizes: list[int], urgencies: list[Urgency], ready: list[Any], links: Links, engine: Any = run
) -> list[Any]:
    """Rank 0 sends rank 1 messages, each from when it is ready on; when each arrives."""
    count = len(sizes)
    tasks = {
        0: tuple(sending(1, size, each, urgencies[each]) for each, size in enumerate(sizes)),
        1: tuple(receiving(0, size, each) for each, size in enumerate(sizes)),
    }
    begins: dict[Any, Any] = {(0, each): at for each, at in enumerate(ready)}
    begins |= {(1, each): ready[0] * 0 for each in range(count)}
    found = ends(tasks, links, ready=begins, in_flight=count, engine=engine)
    return [found[0, each] for each in range(count)]


def test_a_lower_level_has_the_link_to_itself() -> None:
    """20 bytes of level 1 have the link until 10 of level 0 come at second 1, and wait for them."""
    found = to_one_rank([20, 10], [REFINEMENT, BASE], [0.0, 1.0], star(3, RATE, LATENCY_S))
    assert found == [close(30 / RATE + LATENCY_S), close(1.0 + 10 / RATE + LATENCY_S)]


def test_levels_share_a_link_strictly_and_exactly() -> None:
    rate, latency = FRACTIONS
    links, half = star(4, rate, latency), Fraction(1, 2)
    urgencies = [REFINEMENT, REFINEMENT, BASE]
    found = to_one_rank([20, 20, 10], urgencies, [Fraction(0), Fraction(0), half], links, run_reference)
    assert found == [50 / rate + latency, 50 / rate + latency, half + 10 / rate + latency]


def test_a_level_has_what_the_lower_ones_leave() -> None:
    """0 → 3 and 1 → 3 share a downlink at level 0; level 1 from rank 1 to 2 has the rest of its uplink."""
    tasks = {
        0: (sending(3, 10, 0, BASE),),
        1: (sending(3, 10, 1, BASE), sending(2, 20, 2, REFINEMENT)),
        2: (receiving(1, 20, 2),),
        3: (receiving(0, 10, 0), receiving(1, 10, 1)),
    }
    found = ends(tasks, star(4, RATE, LATENCY_S), in_flight=2, ready=0.0)
    assert found[0, 0] == found[1, 1] == close(20 / RATE + LATENCY_S)
    assert found[1, 2] == close(30 / RATE + LATENCY_S)


@pytest.mark.parametrize("links", [star, uplinks])
def test_the_most_urgent_that_waits_is_next_on_a_connection(links: Any) -> None:
    """Nothing gives way: the first one, of level 1, is carried to its end."""
    urgencies = [REFINEMENT, REFINEMENT, BASE]
    found = on_a_connection([10, 10, 10], urgencies, [0.0, 0.1, 0.2], links(2, RATE, LATENCY_S))
    assert found == [close(count * 10 / RATE + LATENCY_S) for count in (1, 3, 2)]


@pytest.mark.parametrize("links", [star, uplinks])
def test_newest_first(links: Any) -> None:
    newest = [Urgency(newest_first=True)] * 4
    found = on_a_connection([10, 10, 10, 10], newest, [0.0, 0.1, 0.2, 0.3], links(2, RATE, LATENCY_S))
    assert found == [close(count * 10 / RATE + LATENCY_S) for count in (1, 4, 3, 2)]


@pytest.mark.parametrize("links", [star, uplinks])
@pytest.mark.parametrize(("boundary", "sent"), [(4, 8), (1, 8), (15, 15), (5, 10), (40, 40), (100, 40)])
def test_one_under_way_gives_way_at_its_next_boundary(links: Any, boundary: int, sent: int) -> None:
    """7.3 of 40 bytes are gone when the urgent one comes at second 1."""
    urgencies = [Urgency(1, boundary=boundary), BASE]
    found = on_a_connection([40, 10], urgencies, [0.0, 1.0], links(2, RATE, LATENCY_S))
    first = 40 if sent == 40 else 50
    assert found == [close(first / RATE + LATENCY_S), close((sent + 10) / RATE + LATENCY_S)]


def test_giving_way_at_the_moment_of_a_boundary_is_at_once() -> None:
    for boundary in (1, 2, 5):
        urgencies = [Urgency(1, boundary=boundary), BASE]
        found = on_a_connection([40, 10], urgencies, [0.0, 10 / RATE], star(2, RATE, LATENCY_S))
        assert found == [close(50 / RATE + LATENCY_S), close(20 / RATE + LATENCY_S)]


def test_newer_ones_give_way_in_turn_and_older_ones_go_on_last() -> None:
    """After 4 bytes of the first the second has the connection, after 4 of that the third; then comes what is
    left of the second, then of the first."""
    rate, latency = FRACTIONS
    urgencies = [Urgency(newest_first=True, boundary=4)] * 3
    ready = [Fraction(0), 1 / rate, 5 / rate]
    found = on_a_connection([10, 10, 10], urgencies, ready, star(2, rate, latency), run_reference)
    assert found == [30 / rate + latency, 24 / rate + latency, 18 / rate + latency]
    floats = on_a_connection([10] * 3, urgencies, [0.0, 1 / RATE, 5 / RATE], star(2, RATE, LATENCY_S))
    assert floats == [close(bytes_gone / RATE + LATENCY_S) for bytes_gone in (30, 24, 18)]


def test_a_less_urgent_one_does_not_make_way() -> None:
    urgencies = [Urgency(0, boundary=4), REFINEMENT]
    found = on_a_connection([40, 10], urgencies, [0.0, 1.0], star(2, RATE, LATENCY_S))
    assert found == [close(40 / RATE + LATENCY_S), close(50 / RATE + LATENCY_S)]


def test_levels_with_background_traffic_are_refused() -> None:
    """It never ends, and would hold up level 1, or level 0 it, for ever."""
    links = star(2, RATE, 0.0)
    tasks = {0: (sending(1, 10, 0, REFINEMENT),), 1: (receiving(0, 10, 0),)}
    with pytest.raises(
        ValueError, match=r"^network.background_jobs=1 and messages of level 1 cannot be[^\n]*$"
    ):
        ends(tasks, links, ready=0.0, background=BackgroundJobs(1, 2, 40.0, links, 0))


def test_the_first_block_overtakes_the_last_on_the_way_to_the_next_forward() -> None:
    """Two blocks on one connection: the second block's gradient is ready first and takes 4 s, the first one's
    1 s. In order, the next forward waits for both; newest first at boundaries of half a second, for one, and
    the rest of the other hides behind the first block's forward."""

    def period(urgency: Urgency) -> float:
        said: list[Said] = [(1, 1), 3.0, (0, 1), 1.0, 1.0, starts(0), 1.0, starts(1)]
        step = {
            0: rank(said, sending(1, 400, 0, urgency), sending(1, 100, 1, urgency)),
            1: rank([starts(0), starts(1)], receiving(0, 400, 0), receiving(0, 100, 1)),
        }
        window = StepWindow(SimulatedClock(star(2, 100.0, 0.0)))
        return [step_end(window.step(number, step)) for number in range(3)][-1]

    assert period(ORDINARY) == close((5.0 - 1.0) + 3.0 + 1.0 + 1.0 + 1.0)
    assert period(Urgency(newest_first=True, boundary=50)) == close(1.0 + 3.0 + 1.0 + 1.0 + 1.0)
