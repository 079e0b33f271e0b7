"""Whole rounds: against the reference bit for bit, the same on every topology, at the edges of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from thc_reference import Reference
from thc_rounds import SEED, as_bytes, exact_mean, gradients, make_hops, mean_and_losses, synchronize, vnmse

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.interface import Layout
from gradwire.codecs.thc import THC

UNIFORM = range(16)
NONUNIFORM = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
ACCURATE = 0.04
"""vNMSE below which 4-bit quantization of the workers' gradients is all that was lost."""


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({}, UNIFORM),
        ({"block": 256, "t_p": 1.5}, UNIFORM),
        ({"block": 32, "quantization_bits": 2}, range(4)),
        ({"table": "nonuniform"}, NONUNIFORM),
    ],
)
def test_a_round_is_the_references_bit_for_bit(options: dict[str, Any], table: tuple[int, ...]) -> None:
    """Root mean squares, signs, rotation, dither, rounding, sums and means; a block of zeros among others."""
    xs, step = gradients(999, 3, spread=2.0), 4
    for x in xs:
        x[512:768] = 0
    mean, _ = synchronize(xs, step=step, **options)
    key = stream_key(SEED, step, Layout.flat(999).uid)
    reference = Reference(
        [x.numpy() for x in xs], options.get("block", 0), options.get("t_p", 2.154), table, key
    )
    np.testing.assert_array_equal(mean.numpy(), reference.mean)
    assert {*reference.integers.flatten()} == {*table}


@pytest.mark.parametrize(
    "options", [{}, {"block": 64, "norm": "bucket"}, {"table": "nonuniform", "bits": 11}]
)
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_every_rank_on_every_topology_gets_the_same_bits(workers: int, options: dict[str, Any]) -> None:
    """No hop rounds, so the order of the sums does not matter."""
    for numel in (1, 7, 255, 1000):
        xs = gradients(numel, workers, spread=0.3)
        mean, _ = synchronize(xs, **options)
        assert mean.shape == (numel,)
        for topology in ("butterfly", "broadcast"):
            assert torch.equal(synchronize(xs, topology, **options)[0], mean)
        if numel == 1000:
            assert vnmse(mean, xs) < ACCURATE


def test_one_workers_integers_do_not_depend_on_the_others() -> None:
    """This holds while no worker has a larger norm: randomness is its own, and quantization comes first."""
    xs = gradients(500, 3)
    everything, two, three = range(1), make_hops(xs[:2]), make_hops([*xs[:2], torch.zeros(500)])
    messages = [torch.empty(512, dtype=torch.uint8) for _ in range(4)]
    for hops, message in zip([*two, *three[:2]], messages, strict=True):
        hops.encode(everything, message, 1)
    assert torch.equal(messages[0], messages[2])
    assert torch.equal(messages[1], messages[3])
    assert not torch.equal(messages[0], messages[1])


def test_randomness_differs_by_step_and_rank() -> None:
    """Equal gradients are rounded differently by every worker, in every step."""
    x = gradients(512, 1)[0]
    (first, second), (later, _) = make_hops([x, x]), make_hops([x, x], step=1)
    messages = [torch.empty(512, dtype=torch.uint8) for _ in range(3)]
    for hops, message in zip([first, second, later], messages, strict=True):
        hops.encode(range(1), message, 1)
    differing = [float((messages[0] != other).float().mean()) for other in messages[1:]]
    assert 0.2 < differing[0] < 0.5  # up or down, by the same signs
    assert differing[1] > 0.8  # other signs


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
@pytest.mark.parametrize(
    ("numel", "options", "bits", "blocks"),
    [
        (5000, {}, 8, 2),
        (5000, {"block": 1024}, 8, 5),
        (1, {}, 8, 1),
        (999, {"block": 16, "bits": 10}, 10, 64),
    ],
)
def test_bytes_are_those_of_the_padded_bucket(
    numel: int, options: dict[str, Any], bits: int, blocks: int, topology: str
) -> None:
    """5000 coordinates: 5120 sums, in blocks of 4096 and 1024; one float32 per block besides."""
    workers = 4
    padded = -(-numel // 128) * 128
    _, sent = synchronize(gradients(numel, workers), topology, **options)
    copies = workers * (workers - 1) if topology == "broadcast" else 2 * (workers - 1)
    assert sent["all_gather"] + sent.get("reduce_scatter", 0) == copies * padded * bits // 8
    assert sent["metadata"] == 2 * (workers - 1) * 4 * blocks


def test_blocks_of_zeros_are_exact() -> None:
    xs = [torch.full((300,), value) for value in (0.0, -0.0, 0.0)]
    assert torch.equal(as_bytes(synchronize(xs)[0]), as_bytes(torch.zeros(300)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_takes_its_block_with_it(value: float) -> None:
    """It spoils that block on every rank, and no other; with one range for all it spoils the bucket."""
    xs = gradients(1000, 3)
    clean, _ = synchronize(xs, block=128)
    xs[1][300] = value
    mean, _ = synchronize(xs, block=128)
    assert mean[256:384].isnan().all()
    assert torch.equal(mean[:256], clean[:256])
    assert torch.equal(mean[384:], clean[384:])
    assert synchronize(xs, block=128, norm="bucket")[0].isnan().all()


@pytest.mark.parametrize("norm", ["block", "bucket"])
@pytest.mark.parametrize("power", [-110, -40, 40, 120])
def test_a_power_of_two_changes_no_bit(power: int, norm: str) -> None:
    """Gradients from 1e-36 to 1e36."""
    xs = [x * 1000 for x in gradients(700, 2, spread=0.5)]
    mean, _ = synchronize(xs, block=256, norm=norm)
    scaled, _ = synchronize([x * 2.0**power for x in xs], block=256, norm=norm)
    assert torch.equal(scaled, mean * 2.0**power)


def test_the_largest_floats_do_not_overflow_on_the_way() -> None:
    """Their squares would overflow; ranges stay finite, and the mean is accurate wherever float32 holds
    it."""
    xs = [1e38 * x.sign() for x in gradients(1000, 3)]
    assert vnmse(synchronize(xs)[0], xs) < ACCURATE
    largest = torch.full((256,), torch.finfo(torch.float32).max)
    assert not synchronize([largest, largest])[0].isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_quantized_as_what_they_hold(dtype: torch.dtype) -> None:
    xs = [x.to(dtype) for x in gradients(900, 2, spread=0.1)]
    mean, _ = synchronize(xs)
    assert mean.dtype == dtype
    assert torch.equal(mean, synchronize([x.float() for x in xs])[0].to(dtype))


@pytest.mark.parametrize("workers", [2, 5])
def test_losses_are_what_the_mean_lacks(workers: int) -> None:
    """Summed over the workers: n exact means less n results, up to rounding."""
    xs = gradients(3000, workers)
    mean, losses = mean_and_losses(xs)
    missing = workers * (exact_mean(xs) - mean.double())
    total = torch.stack([loss.double() for loss in losses]).sum(dim=0)
    assert float((total - missing).norm() / missing.norm()) < 1e-4
    assert float(total.norm()) > 0.05 * float(exact_mean(xs).norm())


def test_it_has_no_state() -> None:
    assert THC().state_dict() == {}
    assert not THC().traits.stateful
