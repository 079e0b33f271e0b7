"""The benchmark measures every compiled kernel, with the bytes that it moves."""

from __future__ import annotations

import pytest
import torch

from gradwire.codecs.native import call
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library
from gradwire.harness.studies.bench.measure import DTYPES
from gradwire.harness.studies.bench.operation import Operation, all_operations, chosen_operations
from gradwire.harness.studies.bench.papers import PAIRS, RINGS

MADE_ONCE = {"dynamiq_tables"}
"""Operations of the host whose result serves all later calls."""

NAMES = [operation.name for operation in all_operations()]


def test_every_kernel_is_measured() -> None:
    built = library("cpu")
    if built is None:
        pytest.skip("the kernels for CPUs are not built")
    measured = {name for operation in all_operations() for name in operation.kernels}
    assert measured == built.declarations.operations.keys() - MADE_ONCE


def test_names_are_unique_and_begin_with_the_family() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(len(name.split(".")) >= 2 for name in NAMES)
    assert {operation.family for operation in chosen_operations(["dynamiq.*"])} == {"dynamiq"}


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bench\.operations: nothing\.\* matches nothing.*dynamiq"):
        chosen_operations(["dynamiq.*", "nothing.*"])


@pytest.mark.parametrize("operation", all_operations(), ids=NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_runs_again_and_again(operation: Operation, dtype: str) -> None:
    """With either implementation, and on tensors that hold about as much as the bucket or less."""
    if dtype not in operation.dtypes:
        pytest.skip("is measured for float32 alone")
    x = torch.randn(40_000, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    before = x.clone()
    for name in ("default", "auto"):
        with using_kernels(name):
            case = operation.make(x)
            case.run()
            case.run()
        assert 0 < case.bytes_read <= 12 * x.numel()
        assert 0 < case.bytes_written <= 8 * x.numel()
    assert torch.equal(x, before), "the bucket is shared by all operations"
    for peer in operation.peers:
        run = peer.make(x)
        assert run is None or run() is not NotImplemented


@pytest.mark.parametrize("operation", all_operations(), ids=NAMES)
def test_every_operation_spends_its_time_in_its_kernels(
    operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls the compiled kernels that the operation names."""
    if library("cpu") is None:
        pytest.skip("the kernels for CPUs are not built")
    called: set[str] = set()
    run = call.Call.run

    def noted(made: call.Call) -> None:
        called.add(made._operation)
        run(made)

    monkeypatch.setattr(call.Call, "run", noted)
    with using_kernels("cpu"):
        case = operation.make(torch.randn(5000))
        called.clear()
        case.run()
    assert called >= set(operation.kernels)


def test_views_of_a_whole_codec_name_operations_that_exist() -> None:
    named = {name for ring in RINGS for name in ring.operations}
    named |= {name for pair in PAIRS.values() for name in pair}
    assert named <= set(NAMES)
