"""TFP's refinement: a payload and a plane of further bits make a longer payload; and the embedded base."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from mxfp_reference import bf16_up
from slice_rounds import Vector, heavy_tailed, sent
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed_bytes, unpack
from gradwire.codecs.tfp.coder import (
    Refinement,
    cannot_refine,
    coder_of,
    plane_bytes,
)

F32 = np.float32
ALL = [
    (bits, more, base)
    for base in ("plain", "embedded")
    for bits in range(2, 32)
    for more in range(bits + 1, 33)
    if cannot_refine(bits, more, base) is None
]


def payload(x: Tensor, bits: int, base: str) -> Tensor:
    coder = coder_of(bits, base)
    message = torch.full((coder.num_bytes(x.numel()),), 0x77, dtype=torch.uint8)
    coder.encode(x, 0, message)
    return message


def plane(x: Tensor, bits: int, more: int, base: str) -> Tensor:
    out = torch.full((plane_bytes(x.numel(), bits, more),), 0x77, dtype=torch.uint8)
    Refinement(bits, more, base).plane(x, out)
    return out


def refined(message: Tensor, further: Tensor, numel: int, bits: int, more: int, base: str) -> Tensor:
    out = torch.full((coder_of(more, base).num_bytes(numel),), 0x33, dtype=torch.uint8)
    Refinement(bits, more, base).join(message, further, numel, out)
    return out


def gradients() -> Tensor:
    """Gradients of many magnitudes, some of them not finite; 701 coordinates are not a whole number of
    blocks."""
    (x,) = heavy_tailed(701, 1)
    x[64:96], x[100], x[101], x[200], x[201] = 0.0, -0.0, 1e-42, 3.4e38, -1e-9
    x[300], x[350], x[400] = torch.nan, torch.inf, -torch.inf
    return x


@pytest.mark.parametrize(("bits", "more", "base"), ALL)
def test_a_payload_and_its_plane_are_the_longer_payload(bits: int, more: int, base: str) -> None:
    x = gradients()
    out = refined(payload(x, bits, base), plane(x, bits, more, base), x.numel(), bits, more, base)
    assert torch.equal(out, payload(x, more, base))


@pytest.mark.parametrize("base", ["plain", "embedded"])
def test_planes_follow_one_another(base: str) -> None:
    """A payload of 10 bits grows to 13, 20 and 32."""
    x, steps = gradients(), (10, 13, 20, 32)
    message = payload(x, 10, base)
    for bits, more in zip(steps, steps[1:], strict=False):
        message = refined(message, plane(x, bits, more, base), x.numel(), bits, more, base)
    assert torch.equal(message, payload(x, 32, base))


@pytest.mark.parametrize(("bits", "more", "base"), [(4, 9, "embedded"), (10, 32, "plain"), (7, 9, "plain")])
def test_values_are_decoded_from_both(bits: int, more: int, base: str) -> None:
    """The longer payload is not written for that."""
    x = gradients()
    message, further = payload(x, bits, base), plane(x, bits, more, base)
    values, sums = torch.full_like(x, 7.0), torch.ones_like(x)
    Refinement(bits, more, base).decode(message, further, values)
    Refinement(bits, more, base).add(message, further, sums)
    expected = sent(coder_of(more, base), x)
    assert torch.equal(values.nan_to_num(9.0), expected.nan_to_num(9.0))
    assert torch.equal(sums.nan_to_num(9.0), (1 + expected).nan_to_num(9.0))


def test_a_plane_is_the_further_bits() -> None:
    """The plane holds further bits of float32's own pattern, and takes no more bytes than they need."""
    (x,) = heavy_tailed(1000, 1)
    assert plane_bytes(1000, 10, 32) == 1000 // 8 * 22
    bits = unpack(plane(x, 10, 32, "plain"), 22)
    assert torch.equal(bits, x.view(torch.int32).bitwise_and((1 << 22) - 1))
    assert unpack(payload(x, 10, "plain"), 10)[:4].tolist() == [
        int(pattern) >> 22 & 0x3FF for pattern in x[:4].view(torch.int32)
    ]


def reference(values: Vector, bits: int) -> Vector:
    """One encoding and decoding in the embedded base, coordinate by coordinate."""
    decoded = np.empty_like(values)
    for start in range(0, len(values), 32):
        own = values[start : start + 32]
        scale = F32(bf16_up(float(np.abs(own).max())))
        for i, x in enumerate(own):
            unit = Fraction(float(F32(abs(x) / scale))) if scale else Fraction(0)
            steps = min(int(unit * 2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            decoded[start + i] = np.copysign(F32(F32(steps * 2.0 ** (1 - bits)) * scale), x)
    return decoded


@pytest.mark.parametrize("bits", [2, 3, 4, 7, 12, 24])
def test_the_embedded_base_is_the_references(bits: int) -> None:
    (x,) = heavy_tailed(500, 1)
    x[32:64], x[64] = 0.0, 0.5  # a block of zeros, and one whose largest is its scale
    np.testing.assert_array_equal(sent(coder_of(bits, "embedded"), x).numpy(), reference(x.numpy(), bits))


def test_embedded_errors_halve_with_every_bit() -> None:
    """Errors are below a step of the block's largest magnitude and towards zero; at 32 bits they almost
    vanish."""
    (x,) = heavy_tailed(32 * 100, 1)
    largest = x.view(-1, 32).abs().amax(dim=1, keepdim=True)
    for bits in range(2, 33):
        decoded = sent(coder_of(bits, "embedded"), x)
        missing = (x.abs() - decoded.abs()).view(-1, 32)
        assert (missing <= largest * 1.01 * (2.0 ** (1 - bits) + 2.0**-24)).all()
        assert (missing >= -(2.0**-23) * x.abs().view(-1, 32)).all()
        assert (decoded * x >= 0).all()
    relative = (sent(coder_of(32, "embedded"), x) / x - 1).abs().view(-1, 32)
    assert float(relative[x.abs().view(-1, 32) > largest / 128].max()) < 2.0**-22


def test_embedded_blocks_at_the_ends_of_the_range() -> None:
    x = torch.zeros(160)
    x[0], x[1], x[32], x[64], x[96] = 3.4028234e38, -1e38, 1e-45, torch.nan, torch.inf
    decoded = sent(coder_of(8, "embedded"), x).view(5, 32)
    assert decoded.isnan().all(dim=1).tolist() == [False, False, True, True, False]
    assert 0.98 * x[0] < decoded[0, 0] <= x[0] and decoded[0, 1] < -0.97e38
    assert decoded[1].isfinite().all() and not decoded[4].any()
    message = payload(x, 8, "embedded")
    assert not message[packed_bytes(64, 8) : packed_bytes(128, 8)].any()  # codes of what is not finite


@pytest.mark.parametrize(
    ("bits", "more", "base", "reason"),
    [
        (4, 8, "plain", "choose base=embedded"),
        (2, 4, "plain", "lose their sign"),
        (5, 6, "plain", "lose their sign"),
        (9, 10, "plain", "different exponents"),
        (7, 9, "scaled", "choose embedded, or plain"),
        (10, 10, "plain", "choose more bits than before"),
        (10, 33, "embedded", "choose more bits than before"),
        (1, 4, "embedded", "choose more bits than before"),
    ],
)
def test_what_cannot_be_refined_is_refused(bits: int, more: int, base: str, reason: str) -> None:
    assert reason in (cannot_refine(bits, more, base) or "")
    with pytest.raises(ValueError, match="tfp: cannot refine"):
        Refinement(bits, more, base)


def test_half_and_single_precision_are_refinable_within_themselves() -> None:
    refinable = [(bits, more) for bits in range(2, 32) for more in range(bits + 1, 33)]
    plain = [pair for pair in refinable if cannot_refine(*pair, "plain") is None]
    assert plain == [(7, 8), (7, 9), (8, 9), *((b, m) for b in range(10, 32) for m in range(b + 1, 33))]
    assert all(cannot_refine(*pair, "embedded") is None for pair in refinable)
