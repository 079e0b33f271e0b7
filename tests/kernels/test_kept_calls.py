"""A thread keeps the structs of its kernel calls: each call sets every field anew."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from gradwire.codecs.native import call
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library
from gradwire.codecs.slice_pass import BucketPass, SlicePass

WIRE = torch.bfloat16


@pytest.fixture(autouse=True)
def compiled() -> None:
    if library("cpu") is None:
        pytest.skip("the kernels for CPUs are not built")


def encoded(x: Tensor, message: Tensor | None) -> Tensor:
    """The message of `x` and what is added, by the kernel."""
    out = torch.zeros(x.numel() * WIRE.itemsize, dtype=torch.uint8)
    SlicePass(WIRE).run(x, message, out=out)
    return out


def defined(x: Tensor, message: Tensor | None) -> Tensor:
    with using_kernels("default"):
        return encoded(x, message)


def test_nothing_of_an_earlier_call_is_left() -> None:
    x, other = torch.randn(64), torch.randn(40)
    message = encoded(torch.randn(64), None)
    for values, added in ((x, message), (x, None), (other, None), (other, message[:80]), (x, message)):
        assert torch.equal(encoded(values, added), defined(values, added))


def test_a_refused_call_leaves_the_next_one_as_it_is() -> None:
    x = torch.randn(64)
    message = encoded(torch.randn(64), None)
    with pytest.raises(ValueError, match="message must be a contiguous torch.uint8 of 128 elements"):
        encoded(x, message[:100])
    assert torch.equal(encoded(x, message), defined(x, message))


def test_a_thread_keeps_its_own_calls() -> None:
    encoded(torch.randn(8), None)
    seen = list[dict[tuple[object, ...], call.Call]]()

    def work() -> None:
        encoded(torch.randn(8), None)
        seen.append(call._kept.calls)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0].keys() <= call._kept.calls.keys()
    assert not {id(made) for made in seen[0].values()} & {id(made) for made in call._kept.calls.values()}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_bucket_in_places_is_its_slices(dtype: torch.dtype) -> None:
    """Every source and every result of a pass is where the definition has it."""
    x, message = torch.randn(96).to(dtype), encoded(torch.randn(32), None)

    def passes() -> list[Tensor]:
        bucket, place = BucketPass(x, WIRE, 3), slice(40, 72)
        sent, again, last = (torch.zeros(64, dtype=torch.uint8) for _ in range(3))
        bucket.run(place, message, out=sent)
        bucket.run(place, message, sums=True)
        bucket.run(place, message, summed=True, sums=True, out=again)
        bucket.run(place, summed=True, out=last, mean=True)
        means = bucket.mean[place].clone()
        bucket.run(place, message, first=sent, mean=True)
        return [sent, bucket.sums[place], again, last, means, bucket.mean[place]]

    with using_kernels("default"):
        expected = passes()
    for found, wanted in zip(passes(), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_message_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="out must be a contiguous torch.uint8 of 64 elements"):
        BucketPass(torch.randn(64), WIRE, 2).run(slice(0, 32), out=torch.zeros(60, dtype=torch.uint8))
