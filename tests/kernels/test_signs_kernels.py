"""1-bit SGD: every implementation writes the definition's bytes, and reads them as it does."""

from __future__ import annotations

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.onebit import SignCoder
from gradwire.codecs.options.quantized import GROUP_SIZES

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def encoded(coder: SignCoder, x: Tensor, seed: int) -> Tensor:
    out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
    coder.encode(x, 0, out)
    return out


def added(coder: SignCoder, message: Tensor, x: Tensor, seed: int) -> list[Tensor]:
    """Decoded, added to something, and added to something that is encoded."""
    values, sums = poisoned(x.numel(), torch.float32, seed), x.clone()
    coder.decode_into(message, 0, values)
    coder.accumulate(message, 0, sums)
    out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
    coder.accumulate_encode(message, 0, x, out)
    return [values, sums, out]


def check(name: str, coder: SignCoder, x: Tensor) -> None:
    sums = misaligned(0.5 * gradient("normal", x.numel(), seed=1), 1)
    message = defined(encoded, coder, x, 0)
    expected = defined(added, coder, message, sums, 0)
    with implementation(name):
        assert_same(encoded(coder, x, 1), message)
        results = added(coder, message, sums, 1)
    for actual, wanted in zip(results, expected, strict=True):
        assert_same(actual, wanted)


@every_implementation
@pytest.mark.parametrize("group", GROUP_SIZES)
def test_every_group(name: str, group: int) -> None:
    """The last one partly there, ending within and between bytes."""
    for numel in (1, 8, 700, group + 777 if group < 5000 else group // 2 + 1):
        for offset in (0, 1):
            check(name, SignCoder(group, 1), misaligned(gradient("normal", numel), offset))


@every_implementation
def test_several_long_groups(name: str) -> None:
    for group in (8192, 65536):
        check(name, SignCoder(group, 1), gradient("heavy_tail", group + 12345))


@every_implementation
@pytest.mark.parametrize("kind", [*KINDS, "negative_zeros"])
def test_every_kind_of_gradient(name: str, kind: str) -> None:
    """Special values of float32 and bfloat16: one that is not finite makes its group NaN, and no other."""
    for group in (8, 128, 1024, 8192):
        for dtype in (torch.float32, torch.bfloat16):
            x = -torch.zeros(3000) if kind == "negative_zeros" else gradient(kind, 3000)
            check(name, SignCoder(group, 1), x.to(dtype))


def test_threads_change_nothing() -> None:
    x = gradient("normal", 1 << 20)
    for group in (512, 1 << 14):
        with implementation("base"):
            alone = encoded(SignCoder(group, 1), x, 0)
            torch.set_num_threads(3)
            try:
                assert_same(encoded(SignCoder(group, 1), x, 1), alone)
            finally:
                torch.set_num_threads(1)


def test_messages_may_lie_anywhere() -> None:
    for name in ("v3", "emulated"):
        coder, x = SignCoder(64, 1), gradient("normal", 1025)
        with using_kernels("default"):
            expected = encoded(coder, x, 0)
        with implementation(name):
            out = misaligned(poisoned(len(expected), torch.uint8), 1)
            coder.encode(x, 0, out)
            assert_same(out, expected)
            assert_same(coder.decode(out, 0, 1025), coder.decode(expected, 0, 1025))


def test_refuses_what_it_cannot_read() -> None:
    x, coder = gradient("normal", 1000), SignCoder(512, 1)
    out = torch.zeros(coder.num_bytes(1000), dtype=torch.uint8)
    with implementation("base"):
        with pytest.raises(
            ValueError, match="signs_encode: message_out must be a contiguous torch.uint8 of 141"
        ):
            coder.encode(x, 0, out[:-1])
        with pytest.raises(ValueError, match="signs_add: values_out must be .* torch.float32 of 1000"):
            coder.accumulate(out, 0, x.double())
        with pytest.raises(RuntimeError, match="signs_encode on cpu: an argument is out of range"):
            bad = SignCoder(96, 1)
            bad.encode(x, 0, torch.zeros(bad.num_bytes(1000), dtype=torch.uint8))
