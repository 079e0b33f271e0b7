"""DynamiQ's state between rounds changes no result, also with threads, and saves nearly all set-up."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from dynamiq_rounds import heavy_tailed, make_hops, run_ring, simulate_ring
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.codecs.dynamiq import DynamiQ, DynamiQPlus
from gradwire.codecs.native.choice import library_for

WORKERS, NUMEL = 4, 256 * 90 + 77


def fresh(codec: DynamiQ, xs: list[Tensor], step: int) -> list[Tensor]:
    return simulate_ring(copy.deepcopy(codec), xs, step=step)


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "codec", [DynamiQ(), DynamiQPlus(), DynamiQ(widths=[4], bits=None)], ids=lambda codec: codec.name
)
def test_later_rounds_are_those_of_a_new_codec(codec: DynamiQ) -> None:
    new = copy.deepcopy(codec)
    for step in range(3):
        xs = heavy_tailed(NUMEL, WORKERS, seed=step)
        assert_equal(simulate_ring(codec, xs, step=step), fresh(new, xs, step))


def test_rounds_in_flight_do_not_meet() -> None:
    """Two buckets of one size, the second begun before the first has ended, and again the other way round."""
    codec, new = DynamiQ(), DynamiQ()
    first, second = (heavy_tailed(NUMEL, WORKERS, seed=seed) for seed in (0, 1))
    for step, others in ((0, (first, second)), (1, (second, first))):
        hops = [make_hops(codec, xs, step=step) for xs in others]
        found = [run_ring(each) for each in reversed(hops)]
        for means, xs in zip(reversed(found), others, strict=True):
            assert_equal(means, fresh(new, xs, step))


def test_rounds_on_two_threads() -> None:
    codec, new = DynamiQ(), DynamiQ()
    all_xs = [heavy_tailed(NUMEL, 2, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda xs: simulate_ring(codec, xs), all_xs))
    for means, xs in zip(found, all_xs, strict=True):
        assert_equal(means, fresh(new, xs, 0))


def test_a_copy_shares_no_round_in_flight() -> None:
    codec, xs = DynamiQ(), heavy_tailed(NUMEL, 2)
    expected = simulate_ring(codec, xs)
    other = copy.deepcopy(codec)
    assert other == codec
    begun = make_hops(codec, xs), make_hops(other, xs)
    for hops in begun:
        assert_equal(run_ring(hops), expected)


def test_losses_keep_their_order_until_they_are_read() -> None:
    codec, xs, others = DynamiQ(), heavy_tailed(NUMEL, 2), heavy_tailed(NUMEL, 2, seed=1)
    expected = []
    for made in (DynamiQ(), codec):
        hops = make_hops(made, xs)
        for one in hops:
            one.keep_losses()
        run_ring(hops)
        if made is codec:
            simulate_ring(codec, others)
        expected.append([one.losses() for one in hops])
    assert_equal(*expected)


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return function(*args, **(kwargs or {}))


def test_operations_of_a_bucket() -> None:
    """One of 8 workers computes statistics, the plan, and as many hops as a ring has."""
    if library_for(torch.device("cpu")) is None:
        pytest.skip("the kernels for CPUs are not built")
    codec, x = DynamiQ(), heavy_tailed(256 * 80, 1)
    messages = [torch.zeros(make_hops(codec, x, num_chunks=8)[0].message_bytes(range(1), 1)).byte()] * 2
    for counted in (False, True):
        with _Operations() as operations:
            (hops,) = make_hops(codec, x, num_chunks=8)
            for chunk in range(8):
                message, out = messages
                if chunk == 0:
                    hops.encode(range(1), out, 1)
                elif chunk < 7:
                    hops.accumulate_encode(message, range(chunk, chunk + 1), out, chunk, chunk + 1)
                else:
                    hops.seal(message, range(7, 8), out, 7, 8)
            for chunk in range(7):
                hops.decode(out, range(chunk, chunk + 1), 8)
            hops.finish()
        assert operations.number <= 12 or not counted
