"""Messages of distinct values, with one codebook and with four, against the scalar reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dynamiq_plus_reference import EPSILONS, PlusReference
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.dynamiq import definition
from gradwire.codecs.dynamiq.codebooks import CODEBOOK_WIDTHS, codebooks_of
from gradwire.codecs.dynamiq.definition import Dither
from gradwire.codecs.dynamiq.format import used_bytes
from gradwire.codecs.dynamiq.values import values_of
from gradwire.codecs.options.dynamiq import Format, Rounding, ScaleRounding

CPU = torch.device("cpu")
KEY = stream_key(seed=2, step=9, uid=4)
SUPER_GROUPS = [0, 7, (1 << 32) - 1, 21, 1 << 20]


def hard_rows(seed: int) -> Tensor:
    """Five super-groups: heavy tails, zeros and vanishing groups, one sign, both ends of float32, one NaN."""
    rows = torch.randn(5, 256, generator=torch.Generator().manual_seed(seed))
    rows[0] *= torch.exp(3 * rows[0].roll(1))
    rows[1, :32], rows[1, 32:48], rows[1, 64:96] = 0.0, -0.0, 1e-12 * rows[1, 64:96]
    rows[1, 96:] = -rows[1, 96:].abs()
    rows[2] = torch.where(rows[2].abs() > 1, rows[2], 1e-40) * (1e-30 if seed % 2 else 1.0)
    rows[3] *= torch.finfo(torch.float32).max / rows[3].abs().max()
    rows[4, 200] = torch.nan
    return rows


def coder_of(
    widths: tuple[int, ...], codebooks: int, group: int, rule: ScaleRounding, dither: Dither
) -> definition.Coder:
    tables: dict[int, Any] = {w: values_of(w, "distinct", EPSILONS.get(w, 0.0), CPU, group) for w in widths}
    if codebooks > 1:
        tables |= {w: codebooks_of(w, EPSILONS[w], CPU) for w in widths if w in CODEBOOK_WIDTHS}
    return definition.Coder(tables, dither, rule, Format(widths, group, mean=False, codebooks=codebooks))


@pytest.mark.parametrize(
    ("codebooks", "group", "scale_rounding", "rounding", "workers"),
    [
        (1, 16, "stochastic", "correlated", 3),
        (4, 32, "ceil", "correlated", 5),
        (4, 16, "stochastic", "independent", 2),
    ],
)
def test_every_operation_matches_the_reference(
    codebooks: int, group: int, scale_rounding: ScaleRounding, rounding: Rounding, workers: int
) -> None:
    """Messages and decoded values of all widths, bit for bit."""
    rank, choices = workers - 1, set()
    reference = PlusReference(
        KEY, rank, workers, rounding, scale_rounding, "distinct", group, codebooks=codebooks
    )
    dither = Dither(KEY, rank, workers, rounding, group)
    for widths in ((16, 4), (8, 2), (6, 3), (5, 1)):
        coder = coder_of(tuple(sorted(widths)), codebooks, group, scale_rounding, dither)
        counts, row_widths = dict.fromkeys(widths, 5), [width for width in widths for _ in range(5)]
        rows, indices = torch.cat([hard_rows(w) for w in widths]), SUPER_GROUPS * 2
        size = used_bytes(counts, coder.format)
        message = torch.full((size + 16,), 0xAB, dtype=torch.uint8)
        definition.compress(rows, torch.tensor(indices), counts, coder, message)
        with np.errstate(all="ignore"):
            assert bytes(message[:size].tolist()) == reference.message(rows.numpy(), row_widths, indices)
            encoded = [reference.encode(*row) for row in zip(rows.numpy(), row_widths, indices, strict=True)]
            expected = np.stack(
                [reference.decode(*parts, width) for parts, width in zip(encoded, row_widths, strict=True)]
            )
        choices |= {(scale & 0x8001, width) for (_, _, scale), width in zip(encoded, row_widths, strict=True)}
        np.testing.assert_array_equal(definition.decompress(message, counts, coder).numpy(), expected)
    assert len({mark for mark, _ in choices}) == codebooks or codebooks == 1
