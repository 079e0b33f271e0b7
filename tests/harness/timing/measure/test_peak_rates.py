"""Peak rates are found by what PyTorch calls a device, and for no other."""

from __future__ import annotations

import pytest

from gradwire.harness.timing.measure.peak_rates import Precision, peak_flops


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H200", "fp32", 66.9),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA A10", "bf16", 125.0),
        ("NVIDIA L40S", "bf16", 362.0),
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp32", None),
        ("NVIDIA GeForce RTX 4090 D", "fp32", None),
        ("Tesla T4", "bf16", None),
        ("NVIDIA A1000", "bf16", None),
        ("Intel(R) Xeon(R) CPU", "fp32", None),
    ],
)
def test_peak_rates(device: str, precision: Precision, tflops: float | None) -> None:
    assert peak_flops(device, precision) == (None if tflops is None else pytest.approx(1e12 * tflops))
