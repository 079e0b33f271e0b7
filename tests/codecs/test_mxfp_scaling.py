"""μ: its rule, the counts it follows and when, and that its state is the codec's whole memory."""

from __future__ import annotations

import pytest
import torch
from mxfp_reference import Ring
from mxfp_rounds import Cluster, gradients
from torch import Tensor

from gradwire.codecs.registry import make_codec


def alike(numel: int, workers: int, seed: int) -> list[Tensor]:
    """Gradients that all ranks share but for a little: their sums are as large as sums can be."""
    common, *noises = gradients(numel, workers + 1, seed)
    return [common + 0.01 * noise for noise in noises]


def run(cluster: Cluster, steps: range, numel: int = 960) -> tuple[list[dict[str, float]], list[Tensor]]:
    """Every step's log, and the means of its two buckets as one tensor."""
    logs, means = [], []
    for step in steps:
        cluster.steps = step
        by_bucket, log = cluster.step(*[alike(numel, len(cluster.codecs), 10 * step + b) for b in (0, 1)])
        logs.append(log)
        means.append(torch.cat(by_bucket))
    return logs, means


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
def test_mu_doubles_on_overflow_and_decays_otherwise(name: str, topology: str) -> None:
    """`Cluster.step` asserts that all ranks log the same."""
    logs, _ = run(Cluster(3, topology, name=name, gamma=0.7), range(14))
    assert logs[0] == logs[0] | {"mu": 3.0, "overflow": 0.0}
    assert logs[1]["mu"] == 3.0, "the counts of the first step are agreed on during the second"
    for counted, log, following in zip(logs, logs[1:], logs[2:], strict=False):
        risen, fallen = max(2 * counted["mu"], log["mu"]), max(0.7 * log["mu"], 1.0)
        assert following["mu"] == (risen if log["overflow"] > 1e-5 else fallen)
    assert len({log["overflow"] > 1e-5 for log in logs}) == 2, "both branches were taken"


def test_the_agreed_share_is_that_of_the_step_before_on_all_ranks_and_hops() -> None:
    workers, numel = 3, 960
    logs, _ = run(Cluster(workers, name="mxfp6", gamma=0.7), range(6), numel)
    for step in range(1, 6):
        saturated = 0
        for bucket in (0, 1):
            xs = [x.numpy() for x in alike(numel, workers, 10 * (step - 1) + bucket)]
            saturated += Ring(xs, logs[step - 1]["mu"], "bf16_mu", "mxfp6").saturated
        assert logs[step]["overflow"] == saturated / (2 * numel * (2 * workers - 1))
    assert any(log["overflow"] for log in logs)


def test_mu_stays_above_its_minimum_and_falls_to_it() -> None:
    xs = [torch.ones(64), torch.zeros(64), torch.zeros(64), torch.zeros(64)]
    for minimum in (1.0, 2.5, 8.0):
        cluster = Cluster(4, gamma=0.5, mu_minimum=minimum)
        history = [cluster.step(xs)[1]["mu"] for _ in range(6)]
        expected = [max(m, minimum) for m in (4.0, 4.0, 2.0, 1.0, 0.5, 0.25)]
        assert history == expected


@pytest.mark.parametrize(("epsilon", "last"), [(0.33, 2.0), (0.34, 1.0)])
def test_epsilon_is_the_share_that_is_tolerated(epsilon: float, last: float) -> None:
    """At μ = 1 two like ones add up to twice the maximum: of three casts the sum's saturates."""
    cluster = Cluster(2, epsilon=epsilon, gamma=0.5)
    history = [cluster.step([torch.ones(64), torch.ones(64)])[1] for _ in range(5)]
    assert [log["mu"] for log in history] == [2.0, 2.0, 1.0, 1.0, last]
    assert [log["overflow"] for log in history[:4]] == [0.0, 0.0, 0.0, 64 / 192]


def test_all_buckets_of_a_step_use_one_mu() -> None:
    """A bucket synchronized alone, at the μ of its step, has the same mean as together with the other."""
    logs, means = run(Cluster(3, name="mxfp4", gamma=0.7), range(6))
    for step, (log, mean) in enumerate(zip(logs, means, strict=True)):
        for bucket, beside in enumerate(mean.split(960)):
            (alone,), _ = Cluster(3, mu=log["mu"], name="mxfp4").step(alike(960, 3, 10 * step + bucket))
            assert torch.equal(beside, alone)
    assert len({log["mu"] for log in logs}) > 3


def test_a_resumed_run_is_the_same_run() -> None:
    whole = Cluster(3, name="mxfp6", gamma=0.7)
    logs, means = run(whole, range(9))
    for at in (1, 4, 7):
        first, second = (Cluster(3, name="mxfp6", gamma=0.7) for _ in range(2))
        run(first, range(at))
        for old, new in zip(first.codecs, second.codecs, strict=True):
            state = old.state_dict()
            assert all(type(key) is str and isinstance(value, Tensor) for key, value in state.items())
            new.load_state_dict({key: value.clone() for key, value in state.items()})
        resumed_logs, resumed_means = run(second, range(at, 9))
        assert resumed_logs == logs[at:]
        assert all(torch.equal(a, b) for a, b in zip(resumed_means, means[at:], strict=True))
        for ended, resumed in zip(whole.codecs, second.codecs, strict=True):
            assert all(torch.equal(v, resumed.state_dict()[k]) for k, v in ended.state_dict().items())


def test_discarded_rounds_leave_no_trace() -> None:
    """A warm-up: rounds, with or without the end of the last step, undone by the state before."""
    fresh = run(Cluster(2, name="mxfp4", gamma=0.5), range(4))
    warm = Cluster(2, name="mxfp4", gamma=0.5)
    before = [{key: value.clone() for key, value in codec.state_dict().items()} for codec in warm.codecs]
    run(warm, range(3))
    warm.synchronize(alike(960, 2, 99), alike(64, 2, 99))
    for codec, state in zip(warm.codecs, before, strict=True):
        codec.load_state_dict(state)
    logs, means = run(warm, range(4))
    assert logs == fresh[0]
    assert all(torch.equal(a, b) for a, b in zip(means, fresh[1], strict=True))


def test_a_codec_that_synchronized_nothing_has_nothing_to_say() -> None:
    codec = make_codec("mxfp8")
    assert codec.end_step(0) == codec.skip_step(0) == {}
    assert codec.traits.stateful and not codec.traits.unbiased


def test_what_is_no_state_of_mxfp_is_refused() -> None:
    codec = make_codec("mxfp8")
    with pytest.raises(ValueError, match=r"^the state of codec=mxfp8 has cast_counts and mu, got \['x'\]$"):
        codec.load_state_dict({"x": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"codec=mxfp8 has mu of shape \[2\], got \[3\]$"):
        codec.load_state_dict(codec.state_dict() | {"mu": torch.ones(3)})
