"""Rules of every registered codec, including two from outside the package."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import toy_codec
from codec_rounds import MODEL, Cluster, as_bytes, gradients, layout_of, mean_of, vnmse
from pool import Workers
from real_rounds import train_rank_for_real
from torch import Tensor

from gradwire.codecs.hop_codec import HopCodec, ReportsLosses
from gradwire.codecs.interface import GRADIENT_DTYPES, Codec, Layout
from gradwire.codecs.plugins import allowed, load
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.codecs.traits import LARGEST_MAGNITUDE, Traits
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.comm.topology.registry import TOPOLOGIES
from gradwire.harness.comm.transport.local import Mailboxes

assert toy_codec.Toy.name in codec_classes()

OWN = {name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")}
PLUGINS = [name for name in allowed() if isinstance(load("codec", name), type)]
NAMES = [
    *(name for name in sorted(OWN | {"toy", "only_hops"}) if not make_codec(name).traits.uses_backend),
    *PLUGINS,
]
"""The codecs to test: one that uses the backend needs a process group and has tests of its own."""

TOPOLOGY_NAMES = sorted(TOPOLOGIES)

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dynamiq": [{"rounding": "independent"}],
    "dynamiq_plus": [{"rounding": "independent", "bits": 4.0}],
    "omnireduce": [{"bits": 4.0, "block": 32}],
    "thc": [{"block": 256, "table": "nonuniform"}, {"bits": 12, "block": 1024, "norm": "bucket"}],
    "qsgd": [{"bits": 4, "norm": "max"}, {"bits": [2, 8], "norm": "max"}],
    "tfp": [{"bits": 4}, {"bits": 12, "rounding": "truncate"}],
    "aqgb": [{"bits": 12}, {"bits": 4, "base": "plain", "rounding": "stochastic"}],
    "powersgd": [{"rank": 1, "feedback": False}],
    "edgc": [{"max_rank": 2, "window": 1, "alpha": 1.0, "estimator": "gaussian"}],
    "topk": [{"values": "bf16", "fraction": 0.1}],
    "randomk": [{"values": "bf16", "fraction": 0.1}, {"unbiased_scaling": True, "fraction": 0.6}],
    "linear": [{"rounding": "stochastic", "scales": "bfloat16"}, {"bits": 8, "hadamard": "fused"}],
    "lattice": [{"bits": 3.0, "code": "packed", "slot": 16}],
    "all_to_all": [{"rounding": "stochastic", "bits_local": 4, "group": 64}, {"hadamard": "apart"}],
}
"""Settings besides the default ones."""

CASES = [(name, options) for name in NAMES for options in [{}, *OPTIONS.get(name, [])]]

every_codec = pytest.mark.parametrize(("codec", "options"), CASES, ids=lambda value: str(value))
every_topology = pytest.mark.parametrize("topology", TOPOLOGY_NAMES)


@pytest.mark.every_value
@every_topology
@every_codec
def test_real_workers_get_what_virtual_ones_get(
    codec: str, options: dict[str, Any], topology: str, workers: Workers
) -> None:
    """Three steps of two buckets: means, bytes and state, bit for bit; the means are near the exact ones."""
    cluster = Cluster(3, topology, codec, **options)
    steps = cluster.train(3)
    real = workers(3)(train_rank_for_real, topology, codec, options, 3)
    for rank, (means, sent, state) in enumerate(real):
        for step, expected in zip(means, steps, strict=True):
            assert all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in zip(step, expected, strict=True))
        assert sent == dict(cluster.world.traffic[rank].by_phase)
        assert_same_state(state, cluster.codecs[rank].state_dict())
    assert vnmse(steps[0][0], gradients(MODEL, 3, 0)) < cluster.codecs[0].traits.worst_vnmse


def assert_same_state(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(as_bytes(value), as_bytes(second[key])), key


@every_codec
@pytest.mark.parametrize("size", [2, 5])
def test_reported_bytes_are_moved_bytes(
    codec: str, options: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are counted where messages meet their receivers, on every topology."""
    moved: Counter[int] = Counter()
    send = Mailboxes.send

    def counted(self: Mailboxes, key: Any, buffer: Tensor, handle: Any) -> None:
        moved[key[0]] += buffer.numel() * buffer.element_size()
        send(self, key, buffer, handle)

    monkeypatch.setattr(Mailboxes, "send", counted)
    for topology in TOPOLOGY_NAMES:
        moved.clear()
        cluster = Cluster(size, topology, codec, **options)
        cluster.train(2)
        hashes = 2 * 2 * 16 * (size - 1)  # what the comparison of hashes sends, uncounted
        for rank, traffic in cluster.world.traffic.items():
            assert moved[rank] - hashes == traffic.total > 0


@every_codec
def test_saved_and_restored_state_goes_on_bit_for_bit(codec: str, options: dict[str, Any]) -> None:
    whole = Cluster(3, "ring", codec, **options)
    expected = whole.train(5)
    first, second = Cluster(3, "ring", codec, **options), Cluster(3, "ring", codec, **options)
    first.train(2)
    for old, new in zip(first.codecs, second.codecs, strict=True):
        state = {key: value.clone() for key, value in old.state_dict().items()}
        assert not state or old.traits.stateful, "a codec with state says so"
        new.load_state_dict(state)
    second.steps = first.steps
    for got, wanted in zip(second.train(3), expected[2:], strict=True):
        assert all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in zip(got, wanted, strict=True))


@every_codec
def test_the_default_device_of_a_script_changes_nothing(codec: str, options: dict[str, Any]) -> None:
    """Three steps, the last one from a saved state: nothing of ours is made where the script makes its
    tensors."""
    steps = [gradients(MODEL, 2, step) for step in range(3)]
    plain = Cluster(2, "ring", codec, **options)
    expected = [plain.one(xs, MODEL) for xs in steps]
    with torch.device("meta"):
        cluster = Cluster(2, "ring", codec, **options)
        means = [cluster.one(xs, MODEL) for xs in steps[:2]]
        for own in cluster.codecs:
            own.load_state_dict({key: value.clone() for key, value in own.state_dict().items()})
        means.append(cluster.one(steps[2], MODEL))
    for mean, wanted in zip(means, expected, strict=True):
        assert torch.equal(as_bytes(mean), as_bytes(wanted))


def traits_of(codec: str, options: dict[str, Any]) -> Traits:
    return make_codec(codec, **options).traits


@every_codec
def test_messages_give_way_after_64_kib_and_aqgbs_after_a_partition(
    codec: str, options: dict[str, Any]
) -> None:
    """The simulated clock depends on it."""
    partition = {"partition": 1024} if codec == "aqgb" else {}
    assert make_codec(codec, **options, **partition).boundary == (4 * 1024 if partition else 2**16)


@every_codec
def test_gradients_of_other_dtypes_are_refused(codec: str, options: dict[str, Any]) -> None:
    made, layout = make_codec(codec, **options), Layout.flat(4096)
    for dtype in (torch.float64, torch.float8_e4m3fn, torch.int32):
        other = replace(layout, dtype=dtype)
        assert all(made.supports(topology, 4, other) for topology in TOPOLOGY_NAMES)
    for dtype in GRADIENT_DTYPES:
        own = replace(layout, dtype=dtype)
        assert any(made.supports(topology, 4, own) is None for topology in TOPOLOGY_NAMES)


@every_codec
def test_zeros_stay_zeros(codec: str, options: dict[str, Any]) -> None:
    """Zeros stay zeros, unless the codec declares that they do not; then they must not."""
    changed = []
    for numel in (1, 7, 255, 1000):
        for topology in TOPOLOGY_NAMES:
            mean = Cluster(3, topology, codec, **options).one([torch.zeros(numel)] * 3)
            assert mean.shape == (numel,)
            changed += [(numel, topology)] * bool(mean.any())
    assert (not changed) == traits_of(codec, options).keeps_zeros, changed


@every_codec
@pytest.mark.parametrize("numel", [1, 7, 255])
def test_tiny_buckets(codec: str, options: dict[str, Any], numel: int) -> None:
    xs = gradients(layout_of({"tiny": (numel,)}), 4)
    for topology in TOPOLOGY_NAMES:
        assert Cluster(4, topology, codec, **options).one(xs).isfinite().all()


@every_codec
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e5m2, torch.int32]
)
def test_the_result_has_the_gradients_dtype(codec: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """It is also as near to the mean as declared and as the dtype allows, or the dtype is refused."""
    layout = layout_of({"a": (30, 40), "b": (100,)}, dtype)
    cluster = Cluster(2, "ring", codec, **options)
    reasons = [cluster.codecs[0].supports(topology, 2, layout) for topology in TOPOLOGY_NAMES]
    if dtype not in GRADIENT_DTYPES:  # other than ours may take more
        assert codec not in OWN or None not in reasons
        assert codec not in OWN or any(str(reason).endswith(f"got {dtype}") for reason in reasons)
        return
    xs = gradients(layout, 2)
    mean = cluster.one(xs, layout)
    assert mean.dtype == dtype
    assert mean.shape == (layout.numel,)
    assert vnmse(mean, xs) < cluster.codecs[0].traits.worst_vnmse + torch.finfo(dtype).eps ** 2


@every_codec
def test_magnitudes_from_tiny_to_huge(codec: str, options: dict[str, Any]) -> None:
    """The error relative to the gradient is nearly that at usual magnitudes, down to the smallest that the
    codec declares, where it declares one that is needed, or unless it declares that it is not at all. What
    overflows beyond the largest can be seen."""
    traits, xs = traits_of(codec, options), gradients(MODEL, 3)
    usual = vnmse(Cluster(3, "ring", codec, **options).one(xs, MODEL), xs)
    magnitude = float(torch.stack(xs).square().mean().sqrt())

    def larger_error(wanted: float, finite: bool = True) -> dict[float, float]:
        """The error at a magnitude, if it is larger, or also if it is not finite."""
        factor = 2.0 ** math.ceil(math.log2(wanted / magnitude))
        scaled = [x * factor for x in xs]
        mean = Cluster(3, "ring", codec, **options).one(scaled, MODEL)
        error = vnmse(mean, scaled)
        fits = error <= 1.2 * usual + 1e-6 or not (finite or mean.isfinite().all())
        return {} if fits else {wanted: error}

    larger = {}
    for wanted in (traits.smallest_magnitude, 2.0**-40, 2.0**20, LARGEST_MAGNITUDE):
        larger |= larger_error(wanted)
    assert (not larger) == traits.follows_magnitude, (usual, larger)
    if traits.smallest_magnitude != Traits.smallest_magnitude:
        assert larger_error(Traits.smallest_magnitude), "a declaration that is not needed"
    if traits.follows_magnitude and traits.shows_nonfinite:
        assert not larger_error(2.0**122.5, finite=False), "what overflows is hidden"


@every_codec
def test_what_is_not_finite_is_seen_by_all(codec: str, options: dict[str, Any]) -> None:
    """This holds on every topology, whichever rank has the value: loss scalers and skipped steps rely on it.
    A codec may declare that such a value can be hidden."""
    hidden = []
    for bad in (float("nan"), float("inf"), float("-inf")):
        for topology in TOPOLOGY_NAMES:
            xs = gradients(MODEL, 3)
            xs[1][1234] = bad
            mean = Cluster(3, topology, codec, **options).one(xs, MODEL)  # hashes are compared: all alike
            hidden += [(bad, topology)] * bool(mean.isfinite().all())
    assert (not hidden) == traits_of(codec, options).shows_nonfinite, hidden


@every_codec
def test_a_larger_error_is_declared_where_it_is_needed_alone(codec: str, options: dict[str, Any]) -> None:
    """A mean of zeros has the error 1: it must not pass for an estimate."""
    traits = traits_of(codec, options)
    assert (traits.worst_vnmse >= 1) == bool(traits.large_error)
    if traits.worst_vnmse <= Traits().worst_vnmse:
        return
    xs = gradients(MODEL, 3)
    means = [Cluster(3, topology, codec, **options).one(xs, MODEL) for topology in TOPOLOGY_NAMES]
    assert Traits().worst_vnmse <= max(vnmse(mean, xs) for mean in means) < traits.worst_vnmse
    exact = torch.stack(xs).double().mean(dim=0)
    if traits.worst_vnmse >= 1 and not traits.unbiased:  # that has a test of its own
        assert all(torch.cosine_similarity(mean.double(), exact, dim=0) > 0.2 for mean in means)


@every_codec
def test_what_says_it_is_unbiased_is(codec: str, options: dict[str, Any]) -> None:
    """The error of the mean over 200 seeds is that of one round divided by 200."""
    if not traits_of(codec, options).unbiased:
        pytest.skip("makes no such claim")
    layout, rounds = layout_of({"a": (16, 32)}), 200
    xs = gradients(layout, 3)
    total, single = torch.zeros(layout.numel, dtype=torch.float64), 0.0
    for seed in range(rounds):
        estimate = Cluster(3, "ring", codec, seed=seed, **options).quick(xs, layout).double()
        total += estimate
        single += float((estimate - mean_of(xs)).square().sum()) / rounds
    remaining = float((total / rounds - mean_of(xs)).square().sum())
    assert remaining <= 1.5 * single / rounds + 1e-12 * float(mean_of(xs).square().sum())


def with_feedback(codec: str, options: dict[str, Any], size: int, topology: str = "ring") -> Cluster | None:
    """A cluster with error feedback; None if the codec refuses it."""
    if not isinstance(innermost(make_codec(codec, **options)), ReportsLosses):
        with pytest.raises(ValueError, match=r"codec\.ef=true"):
            make_codec(codec, ef=True, **options)
        return None
    cluster = Cluster(size, topology, codec, ef=True, **options)
    reason = cluster.supports(MODEL)
    if reason is not None:
        assert "codec.ef=true diverges" in reason
        return None
    return cluster


def residual(codecs: Sequence[Codec]) -> Tensor:
    """The residual of all ranks together for the next step, float64, in the model's layout."""
    total = torch.zeros(MODEL.numel, dtype=torch.float64)
    for codec in codecs:
        state = codec.state_dict()
        total += torch.cat([state[f"residual/{name}"].double() for name in MODEL.names])
    return total


@every_topology
@every_codec
def test_nothing_is_lost_with_error_feedback(codec: str, options: dict[str, Any], topology: str) -> None:
    """Residuals hold what was not sent of all gradients so far: n·Σ means + residuals = Σ gradients."""
    cluster = with_feedback(codec, options, 3, topology)
    if cluster is None:
        pytest.skip("without error feedback")
    given, received = torch.zeros(2, MODEL.numel, dtype=torch.float64)
    for step in range(4):
        xs = gradients(MODEL, 3, step)
        given += 3 * mean_of(xs)
        received += 3 * cluster.one(xs, MODEL).double()
    kept = residual(cluster.codecs)
    difference = (received + kept - given).square().sum() / given.square().sum()
    assert float(difference) < 1e-9


@every_codec
def test_nothing_is_lost_of_gradients_of_fewer_bits(codec: str, options: dict[str, Any]) -> None:
    """Residuals also hold what the result's dtype rounds away."""
    if with_feedback(codec, options, 3) is None:
        pytest.skip("without error feedback")
    layout = replace(MODEL, dtype=torch.bfloat16)
    cluster = Cluster(3, "ring", codec, ef=True, **options)
    given, received = torch.zeros(2, MODEL.numel, dtype=torch.float64)
    for step in range(4):
        xs = gradients(layout, 3, step)
        given += 3 * mean_of(xs)
        received += 3 * cluster.one(xs, layout).double()
    difference = (received + residual(cluster.codecs) - given).square().sum() / given.square().sum()
    assert float(difference) < 1e-9


@every_codec
def test_a_skipped_step_leaves_what_is_kept(codec: str, options: dict[str, Any]) -> None:
    """A step whose gradient is not finite is skipped, so nothing of its bucket is delivered."""
    cluster = with_feedback(codec, options, 3)
    if cluster is None or not traits_of(codec, options).shows_nonfinite:
        pytest.skip("without error feedback, or a NaN may be hidden, as it declares")
    cluster.one(gradients(MODEL, 3), MODEL)
    before = residual(cluster.codecs)
    xs = gradients(MODEL, 3, 1)
    xs[2][77] = float("nan")
    cluster.one(xs, MODEL)
    assert torch.equal(residual(cluster.codecs), before)


@every_codec
def test_what_is_not_applied_is_still_owed(codec: str, options: dict[str, Any]) -> None:
    """A parameter that no rank has used keeps its residual or error; the others change."""
    cluster = with_feedback(codec, options, 2) or Cluster(2, "ring", codec, **options)
    owed = tuple(f"{kind}/{name}" for kind in ("residual", "error") for name in MODEL.names)
    cluster.one(gradients(MODEL, 2), MODEL)
    before = [codec.state_dict() for codec in cluster.codecs]
    keys = [key for key in owed if key in before[0]]
    if not keys:
        pytest.skip("owes nothing")
    unused = keys[-1].partition("/")[2]
    cluster.step((MODEL, gradients(MODEL, 2, 1)), unused=[unused])
    for old, own in zip(before, cluster.codecs, strict=True):
        state = own.state_dict()
        assert torch.equal(state[keys[-1]], old[keys[-1]])
        assert not any(torch.equal(state[key], old[key]) for key in keys[:-1] if old[key].any())


@every_codec
def test_what_is_kept_stays_bounded(codec: str, options: dict[str, Any]) -> None:
    """Residuals stay bounded over 50 steps along rings of three and eight workers and in a broadcast, unless
    the codec refuses feedback."""
    for size, topology in ((3, "ring"), (8, "ring"), (3, "broadcast")):
        cluster = with_feedback(codec, options, size, topology)
        if cluster is None:
            continue
        xs = gradients(MODEL, size)
        norms = []
        for _ in range(50):
            cluster.quick(xs, MODEL)
            norms.append(float(residual(cluster.codecs).norm()))
        assert max(norms[40:]) <= 3 * max(norms[10:25]) + 1e-9, size


@every_codec
def test_every_codec_is_described(codec: str, options: dict[str, Any]) -> None:
    made = make_codec(codec, **options)
    assert made.name == codec
    described = made.about.source and made.about.wire_bits
    assert codec == "only_hops" or described, "give the class `about`: its source and its bits on the wire"
    assert (made.about.state == "none") == (not made.traits.stateful)


def test_a_codec_without_hops_is_refused_when_it_is_made() -> None:
    """The error comes before its first round."""

    class Nothing(HopCodec):
        name = "nothing"

    with pytest.raises(TypeError, match=r"Nothing defines neither hops\(\) nor plan\(\)"):
        Nothing()
