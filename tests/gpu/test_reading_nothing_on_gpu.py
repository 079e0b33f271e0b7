"""Rounds on a GPU for which the host never waits, PyTorch's own copies to and from the device included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from gradwire.codecs.native.choice import available_kernels
from gradwire.harness.studies.bench.host import Buckets, Watch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif("cuda" not in available_kernels(), reason="the kernels for CUDA are not built"),
]

CODECS = ("fp32", "bf16", "uniform", "qsgd", "terngrad", "onebit", "tfp", "thc", "dynamiq", "dynamiq_plus")
"""The codecs of tests/codecs/test_reading_nothing.py, with the same rounds on another device."""


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Within the block PyTorch raises RuntimeError where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_reading_is_noticed() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError), waiting_refused():
        x.sum().item()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("numel", [3000, 300_001])
def test_the_host_waits_for_nothing(codec: str, workers: int, numel: int) -> None:
    """The first round may read what it then keeps."""
    buckets = Buckets(codec, workers, numel, 0, torch.device("cuda"))
    buckets.round(Watch())
    torch.cuda.synchronize()
    with waiting_refused():
        for _ in range(3):
            mean = buckets.round(Watch())
    assert mean.shape == (numel,) and bool(mean.isfinite().all())
