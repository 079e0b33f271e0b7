"""Super-group statistics: every implementation gives the definition's bits."""

from __future__ import annotations

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned, poisoned

from gradwire.codecs.dynamiq.arrangement import write_statistics
from gradwire.codecs.dynamiq.format import num_super_groups


def statistics(x: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mean, norm = (poisoned(num_super_groups(x.numel()), torch.bfloat16, seed) for _ in range(2))
    write_statistics(x, mean, norm)
    return mean, norm


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", [1, 255, 256, 257, 5000])
def test_equal_the_definition(name: str, dtype: torch.dtype, kind: str, numel: int) -> None:
    for offset in (0, 1, 3):
        x = misaligned(gradient(kind, numel).to(dtype), offset)
        expected = defined(statistics, x)
        with implementation(name):
            results = statistics(x, seed=1)
        for actual, wanted in zip(results, expected, strict=True):
            assert_same(actual, wanted)


def test_threads_change_nothing() -> None:
    x = gradient("normal", 1 << 20)
    with implementation("base"):
        alone = statistics(x)
        torch.set_num_threads(3)
        try:
            together = statistics(x, seed=1)
        finally:
            torch.set_num_threads(1)
    for actual, wanted in zip(together, alone, strict=True):
        assert_same(actual, wanted)


def test_refuses_what_it_cannot_read() -> None:
    x = gradient("normal", 1000)
    with implementation("base"):
        for bad in (x.double(), x[::2]):
            with pytest.raises(ValueError, match="super_group_statistics"):
                write_statistics(bad, *(torch.zeros(4, dtype=torch.bfloat16) for _ in range(2)))
        with pytest.raises(ValueError, match="norm must be a contiguous torch.bfloat16 of 4 elements"):
            write_statistics(x, torch.zeros(4, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16))
