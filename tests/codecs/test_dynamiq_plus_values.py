"""Values with distinct codes, and the rounding between them, against scalars."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from gradwire.codecs.dynamiq.values import Distinct, distinct_values, values_of
from gradwire.codecs.options.dynamiq import ValueKind

CPU = torch.device("cpu")
f32 = np.float32
EPSILONS = {2: 0.5, 3: 0.4, 4: 0.25, 5: 0.15, 6: 0.1, 8: 0.06}
WIDTHS = sorted(EPSILONS)


def powers(width: int) -> list[float]:
    """1, a, …, a^P in float64."""
    a = 1 + round(2 * EPSILONS[width] ** 2 * 2**22) / 2**22
    found = [1.0]
    while len(found) <= 1 << (width - 1):
        found.append(found[-1] * a)
    return found


def reference_code(y: np.float32, w: np.float32, negative: bool, width: int) -> int:
    """The code by its definition: a sign, and a count over all thresholds of that side."""
    power, largest = powers(width), (1 << (width - 1)) - negative
    ratio = f32((power[-2] - 1) / (power[-1] - 1))
    t = f32(f32(y * ratio if negative else y) + f32(1))
    level = sum(bool(t > f32(f32(power[k]) * w)) for k in range(largest))
    return level | (1 << (width - 1) if negative and level else 0)


def test_two_bits_are_the_four_values_of_their_definition() -> None:
    assert distinct_values(2, 0.5, CPU).decoded.tolist() == [0.0, float(f32(0.4)), 1.0, -1.0]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_value_has_two_codes(width: int) -> None:
    values = distinct_values(width, EPSILONS[width], CPU).decoded.sort().values
    assert values.unique().numel() == 1 << width
    assert values[0] == -1 and values[-1] == 1
    zero = (1 << (width - 1)) - 1
    assert values[zero] == 0 and not values[zero].signbit()
    # One more on the positive side, both geometric: every gap is a times the one before it.
    assert (values > 0).sum() == zero + 1
    for side in (values[zero:], -values[: zero + 1].flip(0)):
        gaps = side.double().diff()
        assert gaps[1:] / gaps[:-1] == pytest.approx(1 + 2 * EPSILONS[width] ** 2, rel=1e-4)


@pytest.mark.parametrize("kind", ["nonuniform", "uniform"])
def test_other_kinds_spend_a_code_on_a_second_zero(kind: ValueKind) -> None:
    for width in WIDTHS:
        values = values_of(width, kind, EPSILONS[width], CPU).decoded
        assert values.unique().numel() == (1 << width) - 1
        assert torch.equal(values[: 1 << (width - 1)], -values[1 << (width - 1) :])


@pytest.mark.parametrize("width", WIDTHS)
def test_uniform_values_are_equidistant(width: int) -> None:
    values = values_of(width, "uniform", 0.0, CPU).decoded.unique()
    assert values.diff().double().numpy() == pytest.approx(1 / (2 ** (width - 1) - 1), rel=1e-4)


def hard_cases(values: Distinct) -> tuple[Tensor, Tensor, Tensor]:
    """y, w and a signed x, (rows, 256) each: random, on every threshold and next to it, and at both ends."""
    generator = torch.Generator().manual_seed(values.width)
    edge = torch.tensor([1.0, 1 + values.step])
    w = torch.cat((edge, 1 + torch.rand(14, generator=generator) * values.step))
    on = (values.thresholds[:, None] * w - 1).flatten()
    on = torch.cat((on, on / values.negative_span))
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    y = torch.cat((on, on.nextafter(up), on.nextafter(down), torch.tensor([0.0, 1e-30, values.span] * 16)))
    y = y.clamp(0, values.span * (1 + 2.0**-22))
    w = w.repeat(len(y) // 16)
    random = torch.rand(2, 256 * 8, generator=generator)
    y = torch.cat((y, random[0] * values.span, y, random[0] * values.span))
    w = torch.cat((w, 1 + random[1] * values.step, w, 1 + random[1] * values.step))
    sign = torch.ones(len(y)).index_fill_(0, torch.arange(len(y) // 2, len(y)), -1)
    padding = -len(y) % 256
    return tuple(torch.nn.functional.pad(c, (0, padding), value=1.0).view(-1, 256) for c in (y, w, sign))  # type: ignore[return-value]


@pytest.mark.parametrize("width", WIDTHS)
def test_rounding_is_the_count_of_its_definition(width: int) -> None:
    values = distinct_values(width, EPSILONS[width], CPU)
    y, w, x = hard_cases(values)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:24]
    found = values.codes(y[rows].clone(), w[rows], x[rows])
    columns = [part[rows].flatten().numpy() for part in (y, w, x)]
    expected = [reference_code(a, b, c < 0, width) for a, b, c in zip(*columns, strict=True)]
    assert found.flatten().tolist() == expected
    assert {0, 1 << (width - 1)} < set(values.codes(y, w, x).flatten().tolist())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rounding_is_unbiased_between_neighbours(width: int, sign: float) -> None:
    """Over 2¹² equidistant dithers the mean is the value, and only its two neighbours occur."""
    values, count = distinct_values(width, EPSILONS[width], CPU), 1 << 12
    x = sign * torch.cat((torch.linspace(0, 1, 120), torch.logspace(-6, 0, 136)))
    dither = ((torch.arange(count) + 0.5) / count - 0.5)[:, None] * values.step
    rows = x.expand(count, -1).contiguous()
    codes = values.codes(rows.abs() * values.span, values.centre + dither * sign, rows)
    decoded = values.decoded[codes.long()]
    levels = values.decoded.sort().values
    above = levels[torch.searchsorted(levels, x.contiguous()).clamp(max=len(levels) - 1)]
    below = levels[torch.searchsorted(levels, x.contiguous(), right=True).sub(1).clamp(min=0)]
    assert ((decoded == above) | (decoded == below)).all()
    assert ((decoded.double().mean(dim=0) - x).abs() <= (above - below) / count + 1e-6).all()
    # Up is towards +∞ of the signed value: the larger the dither, the lower a coordinate of either sign.
    assert (decoded.diff(dim=0) <= 0).all()
