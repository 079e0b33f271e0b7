"""All operations: compiled kernels write what the definitions write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulation import NOT_BUILT
from implementations import implementation
from inputs import assert_same
from operation_calls import OPERATIONS, call, calls_of_all
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library


def copies(arguments: tuple[Any, ...]) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in arguments]


def test_every_operation_has_a_call() -> None:
    assert set(calls_of_all(1000, torch.float32)) == set(OPERATIONS)


@pytest.mark.parametrize("kernels", ["cpu", "emulated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("special", [False, True])
def test_calls_give_what_the_definition_gives(kernels: str, dtype: torch.dtype, special: bool) -> None:
    if library("emulated" if kernels == "emulated" else "cpu") is None:
        pytest.skip(NOT_BUILT if kernels == "emulated" else "the kernels for CPUs are not built")
    for name, calls in calls_of_all(3001 if not special else 7001, dtype, special).items():
        if special and name == "tfp_add_encode":
            continue  # a NaN's sign, which its message keeps, is the processor's
        for arguments in calls:
            expected, actual = copies(arguments), copies(arguments)
            with using_kernels("default"):
                call(name, *expected)
            with using_kernels(kernels):
                call(name, *actual)
            for a, b in zip(actual, expected, strict=True):
                if isinstance(a, Tensor):
                    assert_same(a, b)


def test_loops_over_the_grid_turn_again_and_again() -> None:
    """On a device of one block every operation's loop turns more than twice, the last time with a part of
    what a block takes: 8192 coordinates at most."""
    torch.manual_seed(0)
    for name, calls in calls_of_all(20_011, torch.float32).items():
        for arguments in calls:
            expected, actual = copies(arguments), copies(arguments)
            with using_kernels("auto"):
                call(name, *expected)
            with implementation("small"):
                call(name, *actual)
            for a, b in zip(actual, expected, strict=True):
                if isinstance(a, Tensor):
                    assert_same(a, b)
