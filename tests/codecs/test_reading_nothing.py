"""Rounds whose messages have fixed sizes read nothing back from the device: the host never waits for it."""

from __future__ import annotations

import pytest
import torch
from emulation import emulation

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library
from gradwire.harness.studies.bench.host import Buckets, Watch, host_row

CODECS = ("fp32", "bf16", "uniform", "qsgd", "terngrad", "onebit", "tfp", "thc", "dynamiq", "dynamiq_plus")
"""MXFP decides by overflows what to do next, and sparse codecs by what they send: those read."""

READING = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_round_reads_nothing(codec: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources for CUDA run here. The first round may read what it then keeps."""
    emulation()
    buckets = Buckets(codec, workers, 3000, 0, torch.device("cpu"))

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("read from the device")

    with using_kernels("emulated"):
        buckets.round(Watch())
        for name in READING:
            monkeypatch.setattr(torch.Tensor, name, refuse)
        for _ in range(2):
            mean = buckets.round(Watch())
    assert mean.shape == (3000,)


def test_a_bucket_takes_few_operations() -> None:
    """Everything that one of eight ranks does for a bucket of DynamiQ, after the first round."""
    if library("cpu") is None:
        pytest.skip("the kernels for CPUs are not built")
    buckets = Buckets("dynamiq", 8, 20_000, 0, torch.device("cpu"))
    row = host_row(buckets, kernels="cpu", seconds=0)
    assert row.operations <= 40
    assert row.calls <= 40
