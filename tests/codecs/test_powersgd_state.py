"""PowerSGD's state, ranks that change during a run, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from powersgd_jobs import SHAPES, Cluster, as_bytes, gradients_of, start_of
from powersgd_reference import Reference, as_matrix
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.wrappers.feedback import ErrorFeedback

MATRIX = "first.weight"


def run(cluster: Cluster, steps: range) -> list[dict[str, Tensor]]:
    """The means; the rank of one matrix changes before step 3 and again before step 5."""
    means = []
    for step in steps:
        cluster.steps = step
        if step in (3, 5):
            for codec in cluster.codecs:
                codec.set_ranks({MATRIX: 8 - step})
        means.append(cluster.step(gradients_of(len(cluster.codecs), step)))
    return means


def assert_same(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> None:
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(as_bytes(a[name]), as_bytes(b[name])) for name in SHAPES)


@pytest.mark.parametrize(
    "options", [{}, {"feedback": False}, {"warm_start": False}, {"orthogonalization": "qr"}]
)
def test_a_resumed_run_is_the_same_run(options: dict[str, Any]) -> None:
    whole = Cluster(3, rank=2, **options)
    means = run(whole, range(7))
    for at in (1, 4, 6):
        first, second = (Cluster(3, rank=2, **options) for _ in range(2))
        run(first, range(at))
        for old, new in zip(first.codecs, second.codecs, strict=True):
            state = old.state_dict()
            assert all(type(key) is str and isinstance(value, Tensor) for key, value in state.items())
            given = {key: value.clone() for key, value in state.items()}
            new.load_state_dict(given)
            for value in given.values():
                value.fill_(1)  # the caller's to do with as it likes
        assert_same(run(second, range(at, 7)), means[at:])
        for ended, resumed in zip(whole.codecs, second.codecs, strict=True):
            final = resumed.state_dict()
            assert final.keys() == ended.state_dict().keys()
            assert all(torch.equal(value, final[key]) for key, value in ended.state_dict().items())


def test_discarded_rounds_leave_no_trace() -> None:
    """A warm-up: rounds of negative steps, undone by the state before them."""
    fresh, warm = Cluster(2, rank=2), Cluster(2, rank=2)
    for cluster in (fresh, warm):
        for codec in cluster.codecs:
            codec.set_ranks({"conv.weight": 1})
    before = [{key: value.clone() for key, value in codec.state_dict().items()} for codec in warm.codecs]
    run(warm, range(-3, 0))
    for codec, state in zip(warm.codecs, before, strict=True):
        codec.load_state_dict(state)
    assert_same(run(warm, range(3)), run(fresh, range(3)))


def test_the_state_is_by_parameter() -> None:
    cluster = Cluster(2, rank=3)
    run(cluster, range(1))
    cluster.codecs[0].set_ranks({"conv.weight": 2})
    shapes = {key: tuple(value.shape) for key, value in cluster.codecs[0].state_dict().items()}
    assert shapes == {
        "rank/conv.weight": (),
        "q/first.weight": (3, 40),
        "q/conv.weight": (3, 75),
        "q/last.weight": (3, 40),
        "error/first.weight": (960,),
        "error/conv.weight": (1200,),
        "error/last.weight": (960,),
        "norms/first.weight": (5,),
    }
    first, second = (codec.state_dict() for codec in cluster.codecs)
    for name in ("first.weight", "conv.weight", "last.weight"):
        assert torch.equal(first[f"q/{name}"], second[f"q/{name}"])
        assert not torch.equal(first[f"error/{name}"], second[f"error/{name}"])


@pytest.mark.parametrize(("first", "second"), [(2, 5), (5, 2)])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_changed_rank_keeps_the_directions_and_the_error(first: int, second: int, by_name: bool) -> None:
    """From the next round on it does what the reference does with a Q that is cut or extended by random
    columns."""
    cluster = Cluster(2, rank=first)
    reference = Reference(2, lambda step: start_of(MATRIX, first, step))
    for step in range(6):
        if step == 3:
            assert reference.q is not None
            extended = torch.cat(
                [torch.from_numpy(reference.q), torch.from_numpy(start_of(MATRIX, second, step))[:, first:]],
                1,
            )
            # Random columns are large next to gradients: the reference's QR, in float64, is not affected.
            reference.q = extended[:, :second].numpy()
            for codec in cluster.codecs:
                if by_name:
                    codec.set_ranks({MATRIX: second})
                else:
                    codec.rank = second
        by_rank = gradients_of(2, step)
        found = cluster.step(by_rank)[MATRIX].double()
        expected = torch.from_numpy(reference.step([as_matrix(own[MATRIX]) for own in by_rank]))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    state = cluster.codecs[0].state_dict()
    assert state[f"q/{MATRIX}"].shape == (second, 40)
    assert state["q/last.weight"].shape == ((first if by_name else second), 40)


def test_rank_0_sends_the_error_along_and_goes_on_from_there() -> None:
    cluster = Cluster(2, rank=2)
    run(cluster, range(2))
    kept = [error.clone() for error in cluster.errors(MATRIX)]
    start = cluster.codecs[0].state_dict()[f"q/{MATRIX}"]
    for codec in cluster.codecs:
        codec.set_ranks({MATRIX: 0})
    by_rank = gradients_of(2, 2)
    mean = cluster.step(by_rank)[MATRIX].reshape(-1)
    sums = [own[MATRIX].reshape(-1) + error for own, error in zip(by_rank, kept, strict=True)]
    assert torch.equal(mean, (sums[0] + sums[1]) / 2)
    assert not any(error.any() for error in cluster.errors(MATRIX))
    assert torch.equal(cluster.codecs[0].state_dict()[f"q/{MATRIX}"], start)
    mean = cluster.step(by_rank)[MATRIX]
    assert torch.equal(mean, (by_rank[0][MATRIX] + by_rank[1][MATRIX]) / 2)
    for codec in cluster.codecs:
        codec.set_ranks({MATRIX: 2})
    cluster.step(by_rank)
    assert all(error.any() for error in cluster.errors(MATRIX))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 0}, "codec.rank=0: choose a whole number from 1 to 65536"),
        ({"rank": 2.5}, "codec.rank=2.5: choose a whole number"),
        ({"start_step": -1}, "codec.start_step=-1: choose a whole number from 0"),
        ({"start_step": "3"}, "codec.start_step=3: choose a whole number"),
        ({"min_compression_rate": -0.1}, "codec.min_compression_rate=-0.1: choose a number from 0"),
        ({"orthogonalization": "svd"}, "codec.orthogonalization=svd: choose one of auto, gram_schmidt, qr"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        PowerSGD(**options)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_other_refusals() -> None:
    codec = PowerSGD()
    with pytest.raises(
        ValueError, match=r"^the rank of a.weight cannot be -1: choose 0 \(uncompressed\) or more$"
    ):
        codec.set_ranks({"b.weight": 2, "a.weight": -1})
    assert codec.state_dict() == {}, "nothing of a refused call remains"
    with pytest.raises(ValueError, match=r"has rank/…, q/…, error/…, norms/…, got residual/x$"):
        codec.load_state_dict({"residual/x": torch.zeros(1)})
    with pytest.raises(ValueError, match="codec=powersgd has error feedback of its own"):
        ErrorFeedback(codec)
    doubles = Layout(("a",), ((4, 4),), (0,), 16, torch.float64)
    assert codec.supports("ring", 2, doubles) is not None
    assert codec.supports("broadcast", 5, Layout.flat(100)) is None


def test_what_it_says_of_itself() -> None:
    codec = PowerSGD()
    assert isinstance(codec, Codec)
    assert codec.traits.stateful
    assert not codec.traits.unbiased
    assert codec.end_step(0) == {}
