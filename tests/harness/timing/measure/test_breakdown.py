"""The parts of a step, the bandwidth over time, and the overlap metrics."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.network.configured import link_rate
from gradwire.harness.network.settings import recorded_network
from gradwire.harness.timing.measure.breakdown import Breakdown, breakdown
from gradwire.harness.timing.measure.metrics import METRICS, of_ranks
from gradwire.harness.timing.measure.spans import Kind, Span
from gradwire.harness.timing.measure.step_figures import Overlap, overlap, rank_figures, utilization
from gradwire.harness.timing.trace.bandwidth import bandwidth

# compute 0-4 and 9-10, codec 3-5, comm 4-8: 4-5 is compression, 5-8 exposed, 8-9 other.
SPANS = [
    Span("compute", 0.0, 4.0),
    Span("compute", 9.0, 10.0),
    Span("codec", 3.0, 5.0),
    Span("comm", 4.0, 8.0, bytes=400),
]


def test_a_step_by_hand() -> None:
    assert breakdown(SPANS, 0.0, 10.0) == Breakdown(5.0, 1.0, 3.0, 1.0)


def test_hidden_codec_and_communication_cost_nothing() -> None:
    spans = [Span("compute", 0.0, 10.0), Span("codec", 1.0, 4.0), Span("comm", 2.0, 9.0)]
    assert breakdown(spans, 0.0, 10.0) == Breakdown(10.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(50))
def test_parts_are_what_a_grid_says_and_sum_to_the_step(seed: int) -> None:
    source = random.Random(seed)
    spans = []
    for _ in range(source.randrange(30)):
        start, end = sorted(source.choices(range(-5, 46), k=2))  # some reach out of the step
        spans.append(Span(cast(Kind, source.choice(["compute", "codec", "comm"])), start * 0.1, end * 0.1))
    step = breakdown(spans, 0.0, 4.0)

    def covered(kind: str, time: float) -> bool:
        return any(span.kind == kind and span.start <= time < span.end for span in spans)

    counts = dict.fromkeys(["compute", "codec", "comm", None], 0)
    for cell in range(40):
        time = (cell + 0.5) * 0.1
        counts[next((kind for kind in ("compute", "codec", "comm") if covered(kind, time)), None)] += 1
    parts = [step.compute_s, step.compression_s, step.exposed_comm_s, step.other_s]
    assert parts == pytest.approx([0.1 * count for count in counts.values()], abs=1e-9)
    assert sum(parts) == pytest.approx(4.0, abs=1e-12)
    assert min(parts) >= 0


def test_a_figure_that_is_no_metric_is_refused() -> None:
    """`patch.dict` puts METRICS back in its order, which is that of columns."""
    assert rank_figures(SPANS, 0.0, 10.0)["comm_s"] == 4.0
    with patch.dict(METRICS):
        METRICS["osf"] = replace(METRICS["osf"], ranks=None)
        with pytest.raises(ValueError, match="osf has no entry with ranks= in METRICS"):
            rank_figures(SPANS, 0.0, 10.0)
        del METRICS["osf"]
        with pytest.raises(ValueError, match="osf has no entry with ranks= in METRICS"):
            rank_figures(SPANS, 0.0, 10.0)


def test_an_empty_step_is_refused() -> None:
    with pytest.raises(ValueError, match="must end after it starts"):
        breakdown([], 1.0, 1.0)


def test_bandwidth_conserves_bytes_and_spreads_them_evenly() -> None:
    spans = [Span("comm", 0.005, 0.025, bytes=200), Span("comm", 0.012, 0.012, bytes=50), SPANS[0]]
    assert bandwidth(spans, 0.0, 0.03) == pytest.approx([5e3, 15e3, 5e3])
    shortened = bandwidth(spans, 0.0, 0.025)  # the last bin is 5 ms wide
    assert shortened == pytest.approx([5e3, 15e3, 10e3])


def test_overlap_by_hand() -> None:
    spans = [*SPANS, Span("compute", 5.0, 6.0)]
    found = overlap(spans, 0.0, 10.0)
    assert found == Overlap(
        compute_s=6.0, comm_s=4.0, overlap_s=1.0, wait_s=3.0, update_s=4.0, update_compute_s=1.0
    )
    assert found.row == pytest.approx(1 / 3)
    assert found.osf == pytest.approx(6 / (6 + 4 - 1))


def test_idle_time_between_two_messages_belongs_to_the_update() -> None:
    spans = [Span("comm", 1.0, 2.0), Span("comm", 5.0, 6.0), Span("compute", 0.0, 4.0)]
    found = overlap(spans, 0.0, 10.0)
    assert (found.comm_s, found.update_s, found.overlap_s, found.update_compute_s) == (2.0, 5.0, 1.0, 3.0)


def test_a_rank_waits_from_its_last_gradient_to_the_update() -> None:
    backward = [Span("compute", 0.0, 2.0), Span("compute", 2.0, 5.0)]
    assert overlap([*backward, Span("compute", 7.0, 9.0)], 0.0, 10.0).wait_s == 2.0
    assert overlap([*backward, Span("compute", 5.0, 9.0)], 0.0, 9.0).wait_s == 0.0
    assert overlap(backward, 0.0, 10.0).wait_s == 5.0, "an update that takes no time is at the end"
    assert overlap([], 0.0, 10.0).wait_s == 0.0


def test_no_rank_waits() -> None:
    whole = overlap([Span("compute", 0.0, 1.0), Span("comm", 0.2, 0.7)], 0.0, 1.0)
    assert (whole.row, whole.osf) == (math.inf, 1.0)


def test_the_group_is_as_good_as_its_worst_rank() -> None:
    ranks = [Overlap(4, 1, 4.0, 2.0, 1, 1), Overlap(4, 2, 3.0, 1.0, 8, 4)]
    names = ("comm_s", "overlap_s", "wait_s", "osf")
    figures = [{"step_time_s": 5.0, **{name: getattr(rank, name) for name in names}} for rank in ranks]
    group = of_ranks(figures)
    assert group == {"step_time_s": 5.0, "comm_s": 2, "overlap_s": 3.0, "wait_s": 2.0, "osf": 0.5}


@pytest.mark.parametrize(
    ("network", "rate"),
    [
        ({"name": "none"}, None),
        ({"name": "paced", "rate_mbit": 200, "latency_s": 0.001}, 200e6),
        ({"name": "shaped", "rate_mbit": 100}, 100e6),
    ],
)
def test_the_rate_of_a_link(network: dict[str, Any], rate: float | None) -> None:
    assert link_rate(recorded_network(network), 4) == rate


@pytest.mark.parametrize(
    ("more", "rate"),
    [
        ((), 200e6),
        (("network.efficiency=0.5",), 100e6),
        (("network.fabric=two_level", "network.ranks_per_node=2", "network.intra_rate_mbit=200"), None),
    ],
)
def test_the_rate_of_a_simulated_link(more: tuple[str, ...], rate: float | None) -> None:
    config = validate(compose([*TINY_MODEL, "network=simulated", "cluster.workers=4", *more]))
    assert link_rate(config.network, 4) == rate


def test_utilization_counts_bits() -> None:
    assert utilization(125_000_000, 1e9, 2.0) == 0.5
