"""The plan of a bucket: every implementation gives the definition's order, means and counts of widths."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from implementations import CPU, EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import WidthIncrements, measured_increments, paper_increments
from gradwire.codecs.dynamiq.arrangement import ArrangementRule, Chunks, arrange, native_plan
from gradwire.codecs.dynamiq.format import ChunkSize
from gradwire.codecs.dynamiq.native import NativePlan
from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.dynamiq import Format

CPU_DEVICE = torch.device("cpu")
INCREMENTS = [
    paper_increments((2, 4, 8)),
    paper_increments((1, 2, 4, 8, 16)),
    paper_increments((2, 8)),
    measured_increments((1, 2, 3, 4, 5, 6, 8, 16), 16),
    WidthIncrements((1, 16), (Fraction(1), Fraction(1, 2))),
]
DEFAULT = INCREMENTS[0]

NORMS = ("normal", "skewed", "constant", "few", "zeros", "some_zeros", "subnormal", "largest", "anything")


def norms(kind: str, count: int, seed: int = 0) -> Tensor:
    """Finite norms, (count,) bf16."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator)
    if kind == "anything":
        return patterns(torch.randint(0, 0x7F80, (count,), generator=generator))
    if kind == "skewed":
        x = (6 * x).exp()
    elif kind == "constant":
        x = torch.full((count,), 0.37)
    elif kind == "few":
        x = torch.tensor([1e-3, 1.0, 1.01, 300.0])[torch.randint(0, 4, (count,), generator=generator)]
    elif kind == "zeros":
        x.zero_()
    elif kind == "some_zeros":
        x[x < 0.3] = 0
    elif kind == "subnormal":
        x *= 2.0**-128
    elif kind == "largest":
        x = 3e38 * torch.rand(count, generator=generator)
    return x.abs().to(torch.bfloat16)


def patterns(bits: Tensor) -> Tensor:
    """The bf16 numbers of these patterns."""
    return bits.to(torch.int16).view(torch.bfloat16)


def cut(total: int, spares: Sequence[int]) -> Chunks:
    """Chunks of a bucket of `total` super-groups that may spend so many bytes on increments."""
    each = [len(range(chunk, total, len(spares))) for chunk in range(len(spares))]
    return Chunks(tuple(ChunkSize(*one, False) for one in zip(each, each, spares, strict=True)))


def compiled(chunks: Chunks, increments: WidthIncrements = DEFAULT, workers: int = 3) -> NativePlan:
    found = library_for(CPU_DEVICE)
    assert found is not None
    return native_plan(found, chunks, increments, workers, CPU_DEVICE)


def spares(chunks: int, length: int, increments: WidthIncrements) -> list[int]:
    """Spare bytes from nothing to more than a chunk of `length` super-groups can use."""
    most = 32 * length * (increments.widths[-1] - increments.widths[0])
    odd = [0, 31, 33, most // 9, most // 3 + 7, most // 2 + 77, most - 1, 2 * most]
    return [odd[chunk % len(odd)] for chunk in range(chunks)]


def planned(
    mean_sum: Tensor, norm: Tensor, chunks: Chunks, increments: WidthIncrements
) -> tuple[Tensor, Tensor, Tensor]:
    made = arrange(mean_sum, norm, 3, chunks, ArrangementRule(increments, Format(increments.widths)))
    return made.order, made.mean, made.numbers


def assert_planned(
    name: str,
    norm: Tensor,
    spare: Sequence[int],
    increments: WidthIncrements = DEFAULT,
    mean_sum: Tensor | None = None,
) -> None:
    """The implementation's plan is the definition's, also where the kernel's tensors hold what was there."""
    given = gradient("normal", norm.numel()).to(torch.bfloat16) if mean_sum is None else mean_sum
    chunks = cut(norm.numel(), spare)
    expected = defined(planned, given, norm, chunks, increments)
    assert torch.equal(expected[0].sort().values, torch.arange(norm.numel(), dtype=torch.int32))
    with implementation(name):
        plan = compiled(chunks, increments)
        for fill in (0x5B, 0xA6) if name in CPU else (0x5B,):
            for tensor in (plan.order, plan.mean, plan.numbers, plan.workspace):
                tensor.view(torch.uint8).fill_(fill)
            plan.run(given, norm)
            for actual, wanted in zip((plan.order, plan.mean, plan.numbers), expected, strict=True):
                assert_same(actual, wanted)


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("increments", INCREMENTS, ids=lambda increments: str(increments.widths))
def test_plans_are_the_definitions(name: str, kind: str, increments: WidthIncrements) -> None:
    for length in (1, 60, 515):
        assert_planned(
            name, norms(kind, 8 * length - 3, seed=length), spares(8, length, increments), increments
        )


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize("kind", NORMS)
def test_plans_are_the_definitions_in_cuda(name: str, kind: str) -> None:
    """Chunks of fewer and of more super-groups than a block has threads; few of them, for it takes long."""
    for increments, chunks, length in ((DEFAULT, 4, 519), (INCREMENTS[1], 2, 100), (INCREMENTS[3], 2, 100)):
        spare = spares(8, length, increments)[3 : 3 + chunks]
        assert_planned(name, norms(kind, chunks * length - 1, seed=1), spare, increments)


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize(
    ("kind", "chunks", "length"), [("skewed", 1, 9000), ("few", 2, 4800), ("zeros", 1, 4097)]
)
def test_long_chunks_are_cut_into_parts(name: str, kind: str, chunks: int, length: int) -> None:
    """Each part is another block's; of equal norms some get more bits, across the parts' ends."""
    norm = norms(kind, chunks * length - 1, seed=2)
    assert_planned(name, norm, [32 * length + 7, 75 * length][:chunks])
    if chunks == 1:
        assert_planned(name, norm, [100 * length], INCREMENTS[3])


@pytest.mark.parametrize("name", EMULATED)
def test_parts_that_shared_memory_has_no_room_for(name: str) -> None:
    """As many parts as a cluster may have blocks, each longer than what a block holds by itself."""
    assert_planned(name, norms("few", 66_000, seed=3), [66_000 * 50 + 9])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_capacity_is_used_as_defined(name: str) -> None:
    """Each capacity has a chunk of its own: this shows which of equal norms get more bits."""
    chunks = 200 if name in CPU else 8
    norm = norms("few", 700).repeat_interleave(chunks)
    assert_planned(name, norm, [chunk * (160_000 // chunks) + 5 for chunk in range(chunks)])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_windows_of_candidates_at_the_ends(name: str) -> None:
    """Thresholds next to zero and to infinity."""
    smallest = torch.arange(400).repeat_interleave(6)
    spare = [32, 640, 64 * 200, 64 * 380, 192 * 399 - 1, 192 * 399]
    assert_planned(name, patterns(smallest), spare)
    assert_planned(name, patterns(0x7F7F - smallest), spare)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in CPU for kind in KINDS]
    + [(name, kind) for name in EMULATED for kind in ("infinite", "nan", "signed_zeros")],
)
def test_any_statistics_are_planned_as_defined(name: str, kind: str) -> None:
    cases = ((3, 2), (701, 5)) if name in EMULATED else ((1, 1), (1, 4), (3, 2), (700, 1), (1701, 1024))
    for total, chunks in cases:
        norm = gradient(kind, total).abs().to(torch.bfloat16)
        mean_sum = gradient(kind, total, seed=1).to(torch.bfloat16)
        mean_sum[::50] = torch.inf
        for increments in (DEFAULT, paper_increments((4,))):
            assert_planned(name, norm, [64 * total // chunks] * chunks, increments, mean_sum)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_statistics_that_were_not_sent_are_zeros(name: str) -> None:
    norm, none = norms("normal", 501), torch.zeros(501, dtype=torch.bfloat16)
    for increments, given in ((DEFAULT, (None, norm)), (paper_increments((4,)), (none, None)),
                              (paper_increments((4,)), (None, None))):  # fmt: skip
        chunks = cut(501, [4000, 9000])
        expected = defined(planned, none, none if given[1] is None else norm, chunks, increments)
        with implementation(name):
            plan = compiled(chunks, increments)
            plan.run(*given)
            for actual, wanted in zip((plan.order, plan.mean, plan.numbers), expected, strict=True):
                assert_same(actual, wanted)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_super_groups(name: str) -> None:
    with implementation(name):
        plan = compiled(cut(0, [0, 0]))
        plan.numbers.fill_(7)
        plan.run(torch.empty(0, dtype=torch.bfloat16), torch.empty(0, dtype=torch.bfloat16))
        assert not plan.numbers.any()


def test_threads_change_nothing() -> None:
    mean_sum, norm = torch.ones(71_997).bfloat16(), norms("skewed", 71_997)
    chunks = cut(71_997, spares(8, 9000, DEFAULT))
    with implementation("base"):
        alone = planned(mean_sum, norm, chunks, DEFAULT)
        torch.set_num_threads(3)
        try:
            for actual, wanted in zip(planned(mean_sum, norm, chunks, DEFAULT), alone, strict=True):
                assert_same(actual, wanted)
        finally:
            torch.set_num_threads(1)


def test_refuse_what_they_cannot_read() -> None:
    norm = norms("normal", 3)
    with implementation("base"):
        plan = compiled(cut(3, [64, 64]))
        with pytest.raises(ValueError, match="norm must be a contiguous torch.bfloat16 of 3 elements"):
            plan.run(None, norm.float())
        with pytest.raises(ValueError, match="choosing widths needs norms"):
            plan.run(norm, None)


def test_the_workspace_is_as_large_as_it_has_to_be() -> None:
    """As Python counts its words the kernel does: it refuses one word less."""
    sizes = ((1, 1), (1024, 1), (1025, 1), (4097, 1), (100_000, 8), (3_000_000, 2), (5000, 1024))
    for total, chunks in sizes:
        norm = norms("zeros", total)
        with implementation("base"):
            plan = compiled(cut(total, [0] * chunks))
            plan.run(None, norm)
            plan.call.arguments.workspace_words -= 1
            with pytest.raises(KernelError, match="out of range"):
                plan.run(None, norm)
