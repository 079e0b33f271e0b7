"""Peak rates of well-known GPUs, and the share of them that a model's training uses (MFU).

Dense rates with float32 accumulation, from NVIDIA's data sheets and architecture white papers: V100, T4, A10,
A30, A40, A100, L4, L40S, RTX 3090, RTX 4090, H100, H200, B200. Rates given "with sparsity" are halved. There
is no rate for unlisted GPUs, for a precision without hardware units, and for CPUs.
"""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "bf16"]

PEAK_TFLOPS: dict[str, dict[Precision, float]] = {
    "B200": {"bf16": 2250.0, "fp32": 75.0},
    "H200 NVL": {"bf16": 835.5, "fp32": 60.0},
    "H200": {"bf16": 989.4, "fp32": 66.9},
    "H100 NVL": {"bf16": 835.5, "fp32": 60.0},
    "H100 PCIe": {"bf16": 756.0, "fp32": 51.2},
    "H100 80GB HBM3": {"bf16": 989.4, "fp32": 66.9},
    "A100": {"bf16": 312.0, "fp32": 19.5},
    "A30": {"bf16": 165.0, "fp32": 10.3},
    "A40": {"bf16": 149.7, "fp32": 37.4},
    "A10": {"bf16": 125.0, "fp32": 31.2},
    "L40S": {"bf16": 362.0, "fp32": 91.6},
    "L4": {"bf16": 121.0, "fp32": 30.3},
    "RTX 4090": {"bf16": 165.2, "fp32": 82.6},
    "RTX 3090": {"bf16": 71.2, "fp32": 35.6},
    "V100": {"fp32": 15.7},
    "T4": {"fp32": 8.1},
}
"""10¹² operations per second, by a string of whole words in the device's name."""

SLOWER = (" Laptop ", " D ", " Max Q ")
"""Words in names of devices that are slower than others with otherwise the same name."""

OPERATIONS = 6
"""Floating-point operations per parameter and token, forward and backward. Those of attention between tokens
are left out, so the share is slightly too low for long sequences."""


def peak_flops(device: str, precision: Precision) -> float | None:
    """Operations per second of the GPU that PyTorch calls `device`; None if it is unknown."""
    words = f" {device.replace('-', ' ')} "
    if any(word in words for word in SLOWER):
        return None
    for name, rates in PEAK_TFLOPS.items():
        if f" {name} " in words and precision in rates:
            return 1e12 * rates[precision]
    return None


def utilized_share(parameters: int, tokens_per_s: float, peak: float) -> float:
    """Model FLOPs utilization: the operations needed to train on `tokens_per_s`, relative to the `peak` rate
    of all devices."""
    return OPERATIONS * parameters * tokens_per_s / peak
