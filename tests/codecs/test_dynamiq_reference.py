"""The codec's kernels against the scalar reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dynamiq_reference import EPSILONS, Reference, statistics
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.dynamiq import definition
from gradwire.codecs.dynamiq.arrangement import super_group_statistics
from gradwire.codecs.dynamiq.definition import Coder, Dither
from gradwire.codecs.dynamiq.format import used_bytes
from gradwire.codecs.dynamiq.values import values_of
from gradwire.codecs.options.dynamiq import WIDTHS, Format, Rounding, ScaleRounding

CPU = torch.device("cpu")
KEY = stream_key(seed=11, step=5, uid=77)
COUNTS = dict.fromkeys(sorted(WIDTHS, reverse=True), 7)
ROW_WIDTHS = [width for width, number in COUNTS.items() for _ in range(number)]
SUPER_GROUPS = [0, 3, 1 << 20, (1 << 32) - 1, 17, 18, 4] * len(COUNTS)


def hard_rows(seed: int) -> Tensor:
    """Seven super-groups: heavy tails, tiny and huge values, zeros of both signs, subnormals, Inf and NaN."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(7, 256, generator=generator)
    rows[0] *= torch.exp(5 * torch.randn(256, generator=generator))
    rows[1, :16] = torch.tensor([0.0, -0.0] * 8)
    rows[1, 16:32] = 1e-40
    rows[1, 32:48] *= 1e-12
    rows[2] *= 1e-30 / rows[2].abs().max()
    rows[2, 5] = 1.0e-45
    rows[3] *= 3e38 / rows[3].abs().max()
    rows[3, 7] = torch.finfo(torch.float32).max
    rows[4] = torch.tensor([-0.0, 1e-41] * 128)
    rows[5, 200] = torch.inf if seed % 2 else -torch.nan
    rows[6] = -rows[6].abs().clamp(min=1).log2().exp2()
    return rows


def hard_batch(seed: int) -> Tensor:
    """Seven different hard super-groups for each width."""
    return torch.cat([hard_rows(seed + i) for i in range(len(COUNTS))])


def make_coder(rank: int, workers: int, rounding: Rounding, scale_rounding: ScaleRounding) -> Coder:
    values = {width: values_of(width, "nonuniform", EPSILONS.get(width, 0.0), CPU) for width in COUNTS}
    return Coder(values, Dither(KEY, rank, workers, rounding), scale_rounding, Format())


def decode_reference(reference: Reference, rows: np.ndarray) -> np.ndarray:
    encoded = [reference.encode(*row) for row in zip(rows, ROW_WIDTHS, SUPER_GROUPS, strict=True)]
    return np.stack(
        [reference.decode(*parts, width) for parts, width in zip(encoded, ROW_WIDTHS, strict=True)]
    )


@pytest.mark.parametrize(
    ("rank", "workers", "rounding", "scale_rounding"),
    [
        (0, 1, "correlated", "stochastic"),
        (4, 5, "correlated", "stochastic"),
        (2, 8, "independent", "ceil"),
    ],
)
def test_every_operation_matches_the_reference(
    rank: int, workers: int, rounding: Rounding, scale_rounding: ScaleRounding
) -> None:
    coder = make_coder(rank, workers, rounding, scale_rounding)
    reference = Reference(KEY, rank, workers, rounding, scale_rounding)
    indices = torch.tensor(SUPER_GROUPS)
    rows = hard_batch(0)
    size = used_bytes(COUNTS, Format())
    message = torch.full((size + 48,), 0xAB, dtype=torch.uint8)
    with np.errstate(all="ignore"):
        definition.compress(rows, indices, COUNTS, coder, message)
        assert bytes(message[:size].tolist()) == reference.message(rows.numpy(), ROW_WIDTHS, SUPER_GROUPS)
        assert not message[size:].any()

        decoded, expected = (
            definition.decompress(message, COUNTS, coder),
            decode_reference(reference, rows.numpy()),
        )
        np.testing.assert_array_equal(decoded.numpy(), expected)
        damaged = list(range(5, len(rows), 7))
        assert np.isnan(expected[damaged]).all()
        assert np.isfinite(np.delete(expected, damaged, axis=0)).all()

        own = hard_batch(100) * 0.5
        sums = own.numpy() + expected
        out = torch.full_like(message, 0xAB)
        definition.compress(own + decoded, indices, COUNTS, coder, out)
        assert bytes(out[:size].tolist()) == reference.message(sums, ROW_WIDTHS, SUPER_GROUPS)
        assert not out[size:].any()


def test_no_code_is_a_negative_zero() -> None:
    """1 bit has no zero, hence no negative one."""
    message = torch.empty(used_bytes(COUNTS, Format()), dtype=torch.uint8)
    coder = make_coder(0, 3, "correlated", "stochastic")
    definition.compress(hard_batch(0), torch.tensor(SUPER_GROUPS), COUNTS, coder, message)
    offset = 0
    for width, number in COUNTS.items():
        packed = message[offset : offset + 32 * width * number].view(number, -1)
        offset += packed.numel()
        if width == 1:
            continue
        codes = unpack(packed, width)
        assert codes.unique().numel() > 2
        assert not (codes == 1 << (width - 1)).any()


def unpack(packed: Tensor, width: int) -> Tensor:
    """(rows, 32·width) uint8 as codes (rows, 256) int64, bit by bit."""
    bits = (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    weights = 1 << torch.arange(width)
    return (bits.view(len(packed), 256, width).long() * weights).sum(dim=2)


@pytest.mark.parametrize("numel", [1, 255, 256, 1000, 1792])
def test_statistics_match_the_reference(numel: int) -> None:
    rows = hard_rows(0)
    rows[5] = 1e38
    flat = rows.flatten()
    flat[numel:] = 0
    total = -(-numel // 256)
    mean, norm = super_group_statistics(rows.view(-1)[:numel])
    for j in range(total):
        expected = statistics(flat[256 * j : min(256 * j + 256, numel)].numpy())
        assert (int(mean[j].view(torch.int16)) & 0xFFFF, int(norm[j].view(torch.int16))) == expected
    assert mean.isfinite().all() and norm.isfinite().all()


def test_statistics_of_non_finite_values_are_not_finite() -> None:
    rows = torch.ones(4, 256)
    rows[0, 3], rows[1, 4], rows[2, 5], rows[2, 6] = torch.nan, torch.inf, torch.inf, -torch.inf
    mean, norm = super_group_statistics(rows.view(-1))
    assert (mean.isfinite() & norm.isfinite()).tolist() == [False, False, False, True]
