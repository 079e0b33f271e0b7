"""Linear quantizers: their error, their messages, special values, settings."""

from __future__ import annotations

import itertools

import linear_reference as reference
import numpy as np
import pytest
import torch
from real_gradients import gpt2_gradients
from torch import Tensor

from gradwire.codecs.arithmetic.random import philox4x32
from gradwire.codecs.linear import LinearQuantizer, RoundingNoise
from gradwire.codecs.options.quantized import GROUPS

KEY = (0x1234_5678, 0x9ABC_DEF0)


def quantized(
    quantizer: LinearQuantizer, x: Tensor, noise: RoundingNoise | None = None, first: int = 0
) -> Tensor:
    message = torch.full((quantizer.message_bytes(x.numel()),), 0xA5, dtype=torch.uint8)
    quantizer.quantize(x, message, noise, first)
    return message


def restored(quantizer: LinearQuantizer, x: Tensor, noise: RoundingNoise | None = None) -> Tensor:
    out = torch.full_like(x, torch.nan)
    quantizer.dequantize(quantized(quantizer, x, noise), out)
    return out


def error(quantizer: LinearQuantizer, x: Tensor) -> float:
    """The share of the energy that is lost."""
    lost = (restored(quantizer, x) - x).double()
    return float(lost.square().sum() / x.double().square().sum())


def normal(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def heavy(numel: int, seed: int = 0) -> Tensor:
    """Values of very different magnitudes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randn(numel, generator=generator).mul_(3)
    return normal(numel, seed + 1) * exponents.exp2() * (exponents < 6)


@pytest.fixture(scope="module")
def gradients() -> list[list[Tensor]]:
    """The gradients of four workers in three steps."""
    return list(gpt2_gradients(4, 3))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("scales", ["float32", "bfloat16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_messages_and_values_are_the_reference_s(
    bits: int, hadamard: bool, scales: str, rounding: str
) -> None:
    noise = RoundingNoise(KEY, rank=3, draw=1) if rounding == "stochastic" else None

    def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
        c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
        return [int(word) for word in philox4x32((c0, c1, c2, c3), key)]

    for group, numel in ((32, 700), (128, 700), (512, 1100), (2048, 2100)):
        quantizer = LinearQuantizer(bits, group, scales, hadamard, rounding)  # type: ignore[arg-type]
        x = heavy(numel)
        x[64:96] = 0
        x[330] = torch.inf
        x[400:420] *= 2.0**-110
        drawn = (
            None if noise is None else reference.dithers(philox, (KEY[0], KEY[1] ^ 1), 3, 4096, numel + group)
        )
        with np.errstate(invalid="ignore"):
            kept, codes = reference.encode(x.numpy(), bits, group, scales, hadamard, drawn)
            expected = reference.decode(kept, codes, bits, group, hadamard, numel)
        message = quantized(quantizer, x, noise, first=4096)
        assert message.numpy().tobytes() == reference.message(kept, codes, bits, scales)
        out = torch.empty_like(x)
        quantizer.dequantize(message, out)
        assert np.array_equal(out.numpy(), expected, equal_nan=True)


def test_sizes_are_what_the_wire_costs() -> None:
    """SDP4Bit's bits per coordinate: 4.016, 4.25 and 8.25."""
    numel = 1 << 20
    for (bits, group), expected in {(4, 2048): 4.015625, (4, 128): 4.25, (8, 128): 8.25}.items():
        assert LinearQuantizer(bits, group).message_bytes(numel) * 8 / numel == expected
    assert LinearQuantizer(4, 128, "bfloat16").message_bytes(numel) * 8 / numel == 4.125
    assert LinearQuantizer(4, 128).message_bytes(0) == 0
    assert LinearQuantizer(4, 128).message_bytes(1) == 16 + 16
    assert LinearQuantizer(8, 32, "bfloat16").message_bytes(33) == 16 + 64


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("hadamard", [False, True])
def test_stochastic_rounding_is_unbiased(bits: int, hadamard: bool) -> None:
    """The mean of 200 roundings is as near to the value as independent errors allow."""
    quantizer = LinearQuantizer(bits, 64, hadamard=hadamard, rounding="stochastic")
    x = heavy(4096, seed=5)
    results = torch.stack([restored(quantizer, x, RoundingNoise((seed, 7), 0)) for seed in range(200)])
    mean, spread = results.double().mean(dim=0), results.double().std(dim=0)
    step = x.view(-1, 64).abs().amax(dim=1).repeat_interleave(64) / (2 ** (bits - 1) - 1)
    deviation = (mean - x) / (torch.maximum(spread, 0.1 * step) / 200**0.5)
    assert deviation.abs().max() < 6
    assert deviation.square().mean().sqrt() < 1.1
    assert abs(deviation.mean()) < 5 / len(x) ** 0.5


def test_noise_is_of_a_coordinate_a_rank_and_a_draw() -> None:
    quantizer = LinearQuantizer(rounding="stochastic")
    x = normal(4096)
    message = quantized(quantizer, x, RoundingNoise(KEY, 1))
    others = [RoundingNoise(KEY, 2), RoundingNoise(KEY, 1, draw=1), RoundingNoise((1, 2), 1)]
    assert not any(torch.equal(message, quantized(quantizer, x, other)) for other in others)
    values, second = restored(quantizer, x, RoundingNoise(KEY, 1)), torch.empty(2048)
    quantizer.dequantize(quantized(quantizer, x[2048:], RoundingNoise(KEY, 1), first=2048), second)
    assert torch.equal(values[2048:], second)


def test_errors_are_those_of_uniform_steps() -> None:
    """A step is 1/7 or 1/127 of the maximum, the error uniform in it: on average a twelfth of its square."""
    x = normal(1 << 18)
    for bits, group in itertools.product((4, 8), (128, 2048)):
        maxima = x.view(-1, group).abs().amax(dim=1).double()
        expected = float((maxima / (2 ** (bits - 1) - 1)).square().mean() / 12 / x.double().square().mean())
        assert error(LinearQuantizer(bits, group), x) == pytest.approx(expected, rel=0.03)
    assert error(LinearQuantizer(4, 128), x) == pytest.approx(0.0139, rel=0.02)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_no_value_is_further_off_than_half_a_step(bits: int, group: int) -> None:
    x = heavy(10_000, seed=group)
    peak = 2 ** (bits - 1) - 1
    for scales, allowed in (("float32", 1.0), ("bfloat16", 1.0 + 2**-7)):
        out = restored(LinearQuantizer(bits, group, scales), x)  # type: ignore[arg-type]
        padded = torch.nn.functional.pad(x, (0, -len(x) % group)).view(-1, group)
        step = padded.abs().amax(dim=1).repeat_interleave(group)[: len(x)] / peak * allowed
        assert ((out - x).abs() <= step / 2 * (1 + 1e-5)).all()


def test_the_transform_undoes_itself() -> None:
    """At 8 bits the error with the transform is as small as without."""
    x = normal(1 << 16)
    plain, smooth = (error(LinearQuantizer(8, 128, hadamard=hadamard), x) for hadamard in (False, True))
    assert smooth == pytest.approx(plain, rel=0.05)
    ones = torch.zeros(64)
    ones[5] = 1
    assert torch.allclose(restored(LinearQuantizer(8, 32, hadamard=True), ones), ones, atol=1e-6)


def test_the_smoother_revives_dead_coordinates(gradients: list[list[Tensor]]) -> None:
    """SDP4Bit §3.2.2 on gradients of a small GPT-2: an outlier turns many coordinates of its group to 0. The
    transform prevents that in all blocks of 32 that have a code other than 0."""
    for workers in gradients:
        shares = []
        for hadamard in (False, True):
            quantizer = LinearQuantizer(4, 128, hadamard=hadamard)
            messages = torch.stack([quantized(quantizer, gradient) for gradient in workers])
            out, codes = (torch.empty(length) for length in (len(workers[0]), -(-len(workers[0]) // 32) * 32))
            quantizer.reduce(messages, out)
            quantizer.reduce(messages, codes, hadamard=False)
            sent = (codes.view(-1, 32) != 0).any(dim=1).repeat_interleave(32)[: len(out)]
            counted = sent & (sum(workers) != 0)
            shares.append(float((counted & (out == 0)).sum() / counted.sum()))
        assert shares[1] < 0.002
        assert shares[1] < shares[0] / 5
    one = [
        float((restored(LinearQuantizer(4, 128, hadamard=hadamard), gradients[0][0]) == 0).float().mean())
        for hadamard in (False, True)
    ]
    assert one[1] < one[0] / 2


def test_larger_groups_lose_more(gradients: list[list[Tensor]]) -> None:
    for gradient, *_ in gradients:
        errors = [error(LinearQuantizer(4, group), gradient) for group in (32, 128, 512, 2048)]
        assert errors == sorted(errors)
        assert error(LinearQuantizer(8, 128), gradient) < errors[1] / 100


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_powers_of_two_change_no_code(hadamard: bool, rounding: str) -> None:
    quantizer = LinearQuantizer(4, 64, hadamard=hadamard, rounding=rounding)  # type: ignore[arg-type]
    noise = RoundingNoise(KEY, 0) if rounding == "stochastic" else None
    x = heavy(5000)
    x /= x.abs().max()
    begin = quantizer.format.scale_bytes(5000)
    message, values = quantized(quantizer, x, noise), restored(quantizer, x, noise)
    for power in (-88, -60, -1, 1, 40, 120):
        scaled = x * 2.0**power
        assert torch.equal(quantized(quantizer, scaled, noise)[begin:], message[begin:])
        assert torch.equal(restored(quantizer, scaled, noise), values * 2.0**power)


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_special_values_stay_in_their_group(bits: int, hadamard: bool) -> None:
    quantizer = LinearQuantizer(bits, 128, hadamard=hadamard)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = normal(1000)
        x[256 + 77] = bad
        out = restored(quantizer, x)
        assert out[256:384].isnan().all()
        assert out[:256].isfinite().all()
        assert out[384:].isfinite().all()
    x = normal(1000)
    x[:128] = 0
    x[128:256] *= 1e-44
    x[256:384] = -0.0
    out = restored(quantizer, x)
    assert (out[:384] == 0).all()
    assert (out[384:] != 0).any()


def test_the_largest_numbers() -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.full((256,), -largest)
    x[128:] = 2.0**122 * normal(128).sign()
    assert torch.equal(restored(LinearQuantizer(4), x)[:128], x[:128])
    assert restored(LinearQuantizer(4, scales="bfloat16"), x)[:128].isnan().all()
    smooth = restored(LinearQuantizer(8, hadamard=True), x)
    assert smooth[:128].isnan().all()  # the first sum of each block overflows
    torch.testing.assert_close(smooth[128:], x[128:], rtol=0.2, atol=0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("hadamard", [False, True])
def test_a_sum_is_that_of_the_values(bits: int, hadamard: bool) -> None:
    """Two levels: what was transformed is summed, and transformed back once (SDP4Bit, Algorithm 3)."""
    quantizer = LinearQuantizer(bits, 128, hadamard=hadamard)
    own = [normal(3000, seed) for seed in range(5)]
    messages = torch.stack([quantized(quantizer, x) for x in own])
    values = [restored(quantizer, x) for x in own]
    out = torch.empty(3000)
    quantizer.reduce(messages, out)
    torch.testing.assert_close(out, sum(values), rtol=0, atol=1e-5)  # type: ignore[arg-type]
    between = torch.empty(3008)  # whole blocks
    quantizer.reduce(messages, between, hadamard=False)
    last = LinearQuantizer(8, 32)
    message = quantized(last, between)
    last.reduce(torch.stack((message, message)), out, hadamard=hadamard)
    torch.testing.assert_close(out, 2 * sum(values), rtol=0, atol=0.2)  # type: ignore[arg-type]
    quantizer.reduce(messages[:1], out)
    assert torch.equal(out, values[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adding_rounds_once(dtype: torch.dtype) -> None:
    """Weight differences reach the weights (SDP4Bit §3.1)."""
    quantizer = LinearQuantizer(4, 2048)
    weights, difference = normal(5000, 1).to(dtype), normal(5000, 2) * 1e-2
    message, values = quantized(quantizer, difference), restored(quantizer, difference)
    expected = (weights.float() + values).to(dtype)
    quantizer.add(message, weights)
    assert torch.equal(weights, expected)


def test_weight_differences_leave_nothing_behind() -> None:
    """SDP4Bit, Algorithm 2: the next step's difference holds what this step loses."""
    quantizer = LinearQuantizer(4, 2048)
    main = normal(4096)
    model = torch.zeros(4096)
    left = []
    for _ in range(6):
        quantizer.add(quantized(quantizer, main - model), model)
        left.append(float((main - model).norm() / main.norm()))
    assert left[0] > 0.05
    assert all(after < 0.2 * before for before, after in itertools.pairwise(left))


def test_bfloat16_buffers_are_their_float32_values() -> None:
    x = normal(3001).to(torch.bfloat16)
    for quantizer in (LinearQuantizer(8, hadamard=True), LinearQuantizer(4, 64, "bfloat16")):
        message = quantized(quantizer, x)
        assert torch.equal(message, quantized(quantizer, x.float()))
        exact, rounded = torch.empty(3001), torch.empty(3001, dtype=torch.bfloat16)
        quantizer.dequantize(message, exact)
        quantizer.dequantize(message, rounded)
        assert torch.equal(exact.to(torch.bfloat16), rounded)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"bits": 2}, "bits=2: choose one of 4, 8"),
        ({"group": 96}, "group=96: choose one of 32, 64"),
        ({"group": 4096}, "group=4096: choose one of 32, 64"),
        ({"scales": "float16"}, "scales=float16: choose one of float32, bfloat16"),
        ({"rounding": "down"}, "rounding=down: choose one of nearest, stochastic"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        LinearQuantizer(**settings)  # type: ignore[arg-type]


def test_nothing_is_something_to_quantize_but_not_to_sum() -> None:
    quantizer, empty = LinearQuantizer(hadamard=True), torch.empty(0)
    message = quantized(quantizer, empty)
    quantizer.dequantize(message, empty)
    quantizer.reduce(torch.stack((message, message)), empty)
    with pytest.raises(ValueError, match="there are no messages"):
        quantizer.reduce(torch.empty(0, 544, dtype=torch.uint8), torch.empty(1000))


def test_noise_belongs_to_stochastic_rounding() -> None:
    x = normal(64)
    with pytest.raises(ValueError, match="rounding=stochastic needs noise"):
        quantized(LinearQuantizer(rounding="stochastic"), x)
    with pytest.raises(ValueError, match="rounding=nearest takes no noise"):
        quantized(LinearQuantizer(), x, RoundingNoise(KEY, 0))
    with pytest.raises(ValueError, match="first=16: choose a multiple of 32"):
        quantized(LinearQuantizer(rounding="stochastic"), x, RoundingNoise(KEY, 0), first=16)
