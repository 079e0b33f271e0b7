"""The lattice codec as a whole: its budget, its decisions, and gradients that are not like others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from codec_rounds import Cluster, gradients, layout_of, mean_of, vnmse
from torch import Tensor

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.lattice.feedback import COORDINATES, GAIN, SIZES, STEP
from gradwire.codecs.lattice.prediction import statistics
from gradwire.codecs.lattice.rice import Rice
from gradwire.codecs.lattice.sizes import MessageCounts, Sizing
from gradwire.codecs.lattice.slots import Slots, super_groups_of
from gradwire.codecs.registry import make_codec
from gradwire.codecs.wrappers.decisions import decision_of

LAYOUT = layout_of({"a": (60, 256), "b": (100,)})

OPTIONS: list[dict[str, Any]] = [{}, {"bits": 3.0, "code": "packed", "slot": 16}]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def sent(cluster: Cluster) -> list[int]:
    """Bytes that each rank has sent so far, feedback and statistics included."""
    phases = ("metadata", "reduce_scatter", "all_gather")
    return [
        sum(cluster.world.traffic[rank].by_phase.get(p, 0) for p in phases) for rank in cluster.world.ranks
    ]


def gradients_sent(topology: str, size: int) -> int:
    """Encoded gradients that all ranks send in a round."""
    return size * (size - 1) if topology == "broadcast" else 2 * (size - 1)


def awkward(kind: str, size: int, step: int, layout: Layout = LAYOUT) -> list[Tensor]:
    """Gradients that predictions know nothing of: every step is of another magnitude and shape."""
    draw = torch.Generator().manual_seed(100 * step + size)
    xs = gradients(layout, size, step)
    if kind == "spikes":
        return [x + 1e3 * (torch.rand(x.shape, generator=draw) < 1e-3) for x in xs]
    if kind == "magnitudes":
        return [x * 10.0 ** (5 * (step % 3) - 5) for x in xs]
    if kind == "columns":
        return [x * (torch.arange(layout.numel) % 512 < 256 * (step % 2) + 16) for x in xs]
    if kind == "zeros":
        return [torch.zeros_like(x) for x in xs]
    if kind == "broken":
        return [x.index_fill(0, torch.arange(0, layout.numel, 300), torch.nan) for x in xs]
    if kind == "opposed":
        return [x * (-1) ** rank for rank, x in enumerate(xs)]
    assert kind == "usual"
    return xs


@every_option
@pytest.mark.parametrize("kind", ["usual", "spikes", "magnitudes", "columns", "opposed"])
@pytest.mark.parametrize(("topology", "size"), [("ring", 3), ("butterfly", 5), ("broadcast", 3)])
def test_the_budget_holds_in_every_step(options: dict[str, Any], kind: str, topology: str, size: int) -> None:
    """Whatever the gradients are, all bytes together are at most `codec.bits` a coordinate and message."""
    cluster, bits = Cluster(size, topology, "lattice", **options), options.get("bits", 5.0)
    allowed = bits * LAYOUT.numel / 8 * gradients_sent(topology, size)
    before = 0
    for step in range(4):
        mean = cluster.one(awkward(kind, size, step), LAYOUT)
        assert mean.isfinite().all()
        total = sum(sent(cluster))
        assert 0.85 * allowed < total - before <= allowed, step
        before = total


@every_option
@pytest.mark.parametrize("kind", ["spikes", "magnitudes", "zeros", "broken"])
@pytest.mark.parametrize(("topology", "size"), [("ring", 3), ("butterfly", 5), ("broadcast", 3)])
def test_sizes_of_messages_do_not_depend_on_the_steps_own_data(
    options: dict[str, Any], kind: str, topology: str, size: int
) -> None:
    """They follow from steps before the last one."""
    clusters = [Cluster(size, topology, "lattice", **options) for _ in range(2)]
    for step in range(4):
        for own, cluster in zip(("usual", kind if step >= 2 else "usual"), clusters, strict=True):
            cluster.one(awkward(own, size, step), LAYOUT)
        assert sent(clusters[0]) == sent(clusters[1])


@pytest.mark.parametrize("hold", [1, 3])
def test_sizes_are_held(hold: int) -> None:
    """They change in every `hold`-th step, once they follow gradients: what a captured round needs."""
    cluster, forms = Cluster(3, "ring", "lattice", hold=hold), list[Any]()
    codec = cluster.codecs[0]
    for step in range(11):
        before = sum(sent(cluster))
        cluster.one(awkward("usual", 3, step), LAYOUT)
        this_round = Round(step + 1, LAYOUT, 0, 3, cluster.seed)
        forms.append((codec.captured_form(this_round), sum(sent(cluster)) - before))
    follow = [form for form, _ in forms[1:]]
    changes = [step for step, pair in enumerate(zip(follow, follow[1:], strict=False)) if pair[0] != pair[1]]
    assert changes == ([*range(9)] if hold == 1 else [1, 4, 7])
    assert len({num_bytes for _, num_bytes in forms[2:5]}) <= (3 if hold == 1 else 2)
    assert (codec.refuses_capture(LAYOUT) or "").startswith("codec.hold=1 has") == (hold == 1)


def test_sizes_follow_what_slots_took() -> None:
    """Gradients that all workers share need the more bits the more a sum holds; opposed ones fewer."""
    last = {}
    for kind in ("usual", "opposed"):
        cluster = Cluster(4, "ring", "lattice")
        for step in range(5):
            cluster.one(awkward(kind, 4, step), LAYOUT)
        decision = decision_of(cluster.codecs[0])
        assert decision[COORDINATES] == [LAYOUT.numel] and len(decision[STEP]) == 1  # type: ignore[arg-type]
        last[kind] = [*decision[GAIN]]  # type: ignore[misc]
        sizes = [*decision[SIZES]]  # type: ignore[misc]
        assert len(sizes) == 4 and all(size % 32 == 0 for size in sizes)
    assert last["usual"][2] > last["usual"][0] + 150, "three alike: nine times the variance, less the noise"
    assert last["opposed"][1] < last["usual"][1] - 64


@every_option
def test_another_bucket_in_the_same_place_starts_anew(options: dict[str, Any]) -> None:
    """DDP divides parameters anew after its first step: decisions about larger buckets mean nothing."""
    other = layout_of({"c": (20, 256)})
    cluster = Cluster(3, "ring", "lattice", **options)
    for step in range(3):
        cluster.one(gradients(LAYOUT, 3, step), LAYOUT)
    allowed, before = options.get("bits", 5.0) * other.numel / 8 * 4, sum(sent(cluster))
    for step in range(3):
        mean = cluster.one(gradients(other, 3, step), other)
        total = sum(sent(cluster))
        assert total - before <= allowed
        before = total
        assert vnmse(mean, gradients(other, 3, step)) < 0.2


@every_option
@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_super_group(
    options: dict[str, Any], topology: str, bad: float
) -> None:
    xs = gradients(LAYOUT, 3)
    xs[1][256 * 7 + 3] = xs[2][256 * 40] = bad
    mean = Cluster(3, topology, "lattice", **options).one(xs, LAYOUT)
    wrong = [*range(256 * 7, 256 * 8), *range(256 * 40, 256 * 41)]
    assert (~mean.isfinite()).nonzero().view(-1).tolist() == wrong
    rest = torch.ones(LAYOUT.numel, dtype=torch.bool)
    rest[wrong] = False
    assert vnmse(mean[rest], [x[rest] for x in xs]) < 0.2


def test_zeros_among_others_stay_zeros() -> None:
    """Super-groups that are zeros on all workers, next to some that are not, and one worker's zeros."""
    xs = gradients(LAYOUT, 3)
    for x in xs:
        x[: 256 * 9] = 0
    xs[0].zero_()
    mean = Cluster(3, "ring", "lattice").one(xs, LAYOUT)
    assert not mean[: 256 * 9].any() and vnmse(mean, xs) < 0.05


@pytest.mark.parametrize(("topology", "size"), [("ring", 4), ("butterfly", 4)])
def test_a_loud_worker_costs_no_more_than_dynamiq_plus(topology: str, size: int) -> None:
    """One worker's gradients have ten times the norm of the others'."""
    errors = {}
    for codec in ("lattice", "dynamiq_plus"):
        cluster, found = Cluster(size, topology, codec, bits=5.0), 0.0
        for step in range(6):
            xs = gradients(LAYOUT, size, step)
            xs[1] *= 10
            found += vnmse(cluster.one(xs, LAYOUT), xs) * (step >= 2)
        errors[codec] = found
    assert errors["lattice"] < 1.1 * errors["dynamiq_plus"]


def test_predictions_reach_beyond_the_curve() -> None:
    """Bits fall with the step however far it lies from the one last known: down to headers, where all
    integers are 0."""
    table = torch.tensor(Rice().table)
    sizing = Sizing(Slots(LAYOUT.numel, 3, 64), MessageCounts(((1, 3), (2, 3), (3, 6)), 3), 5.0)
    own = statistics(gradients(LAYOUT, 1)[0], -3 * 64, table)
    curve = sizing.curve(own.curve, -3 * 64, 1)
    bits = curve.bits(0, torch.arange(-20 * 64, 12 * 64))
    assert torch.equal(bits, bits.sort(descending=True).values)
    assert int(bits[-1]) < 12 * super_groups_of(LAYOUT.numel) + curve.fixed
    slope = (bits[:64] - bits[64:128]).double() / curve.coordinates
    assert torch.allclose(slope, torch.ones(64).double(), atol=0.02), "one bit an octave"
    gains = curve.gain_of(torch.stack([curve.bits(gain, -200) for gain in (-400, 0, 400)]), -200)
    assert (gains - torch.tensor([-400, 0, 400])).abs().max() <= 2


def test_a_long_ring_is_stable() -> None:
    size, layout = 16, layout_of({"a": (80, 256)})
    cluster = Cluster(size, "ring", "lattice")
    errors = []
    for step in range(3):
        xs = gradients(layout, size, step)
        errors.append(vnmse(cluster.quick(xs, layout), xs))
    assert max(errors) < 0.02


def test_the_error_is_less_than_that_of_dynamiq_plus() -> None:
    """At the same bits, once the sizes follow the gradients."""
    found = {}
    for codec in ("lattice", "dynamiq_plus"):
        cluster, error = Cluster(4, "ring", codec, bits=5.0), 0.0
        for step in range(5):
            xs = gradients(LAYOUT, 4, step)
            error += vnmse(cluster.one(xs, LAYOUT), xs) * (step >= 2)
        found[codec] = error
    assert found["lattice"] < found["dynamiq_plus"]


def test_small_buckets_travel_in_bfloat16_without_bias() -> None:
    layout = layout_of({"a": (500,)})
    xs, rounds = gradients(layout, 3), 100
    cluster = Cluster(3, "ring", "lattice")
    total, single = torch.zeros(500, dtype=torch.float64), 0.0
    for _ in range(rounds):
        error = cluster.quick(xs, layout).double() - mean_of(xs)
        total, single = total + error / rounds, single + float(error.square().sum()) / rounds
    assert 0 < float(total.square().sum()) < 1.5 * single / rounds
    assert single < 3e-5 * float(mean_of(xs).square().sum())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 1.5}, r"codec\.bits=1\.5: choose a number from 2 to 16"),
        ({"code": "ans"}, r"codec\.code=ans"),
        ({"slot": 100}, r"codec\.slot=100"),
        ({"ef": True}, r"codec\.ef=true"),
    ],
)
def test_settings_outside_their_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_codec("lattice", **options)
