"""OmniReduce's rounds: against a scalar reference bit for bit, their bytes, edges, losses and state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from codec_rounds import as_bytes, mean_of
from sparse_rounds import Ranks, heavy, kept_by_feedback, ring_sums
from torch import Tensor

from gradwire.codecs.exact import BF16
from gradwire.codecs.interface import Layout
from gradwire.codecs.omnireduce import OmniReduce, block_energies, largest_blocks, pack_mask, unpack_mask

LARGE = Layout.flat(1 << 20)

TOPOLOGY_NAMES = ["ring", "butterfly", "broadcast"]


def energies(x: Tensor, block: int) -> list[float]:
    """The energy of every block in float64, one coordinate after another."""
    values = x.double().tolist()
    return [sum(v * v for v in values[i : i + block]) for i in range(0, len(values), block)]


def union_of(xs: list[Tensor], block: int, count: int) -> list[int]:
    """Blocks among the `count` largest of any worker, by sorting Python numbers."""
    chosen: set[int] = set()
    for x in xs:
        by_size = energies(x, block)
        chosen |= {*sorted(range(len(by_size)), key=lambda b: (-by_size[b], b))[:count]}
    return sorted(chosen)


@pytest.mark.parametrize("numel", [1003, 1008])
def test_a_ring_is_the_references_bit_for_bit(numel: int) -> None:
    """Choice of blocks, bfloat16 sums of what remains, means, and k, over six rounds."""
    workers, block, bits = 3, 16, 6.0
    total = -(-numel // block)
    ranks = Ranks(lambda: OmniReduce(bits=bits, block=block), workers)
    k = (1 - (1 - bits / 16) ** (1 / workers)) * total
    for step in range(6):
        xs = heavy(numel, workers, seed=step)
        union = union_of(xs, block, max(round(k), 1))
        sent = torch.cat([torch.arange(b * block, min((b + 1) * block, numel)) for b in union])
        expected = np.zeros(numel, np.float32)
        expected[sent.numpy()] = ring_sums([x[sent] for x in xs]) / np.float32(workers)
        np.testing.assert_array_equal(ranks.one(xs).numpy(), expected)
        k = min(max(0.8 * k + 0.2 * (bits / 16 * total / len(union)) * k, 1), total)
        for codec in ranks.codecs:
            assert float(codec.state_dict()["k/flat"]) * total == pytest.approx(k, rel=1e-12)


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_blocks_in_the_union_are_the_bf16_sums_and_others_zero(workers: int, topology: str) -> None:
    """All ranks get the same (hashes are compared), at sizes around the block's."""
    for numel in (1, 7, 255, 256, 257, 1000, 5000):
        xs = heavy(numel, workers, seed=numel, block=256)
        mean = Ranks(OmniReduce, workers, topology).one(xs)
        if workers == 1:
            continue  # nothing to synchronize
        union = union_of(xs, 256, max(round((1 - 0.5 ** (1 / workers)) * -(-numel // 256)), 1))
        sent = torch.zeros(-(-numel // 256), dtype=torch.bool)
        sent[union] = True
        sent = sent.repeat_interleave(256)[:numel]
        assert not mean[~sent].any()
        largest = torch.stack(xs).abs().amax(dim=0)
        assert ((mean - mean_of(xs))[sent].abs() <= workers * 2**-8 * largest[sent]).all()


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
def test_sixteen_bits_are_bf16(topology: str) -> None:
    xs = heavy(1003, 4)
    everything = Ranks(lambda: OmniReduce(bits=16.0, block=16), 4, topology).one(xs)
    assert torch.equal(as_bytes(everything), as_bytes(Ranks(BF16, 4, topology).one(xs)))


@pytest.mark.parametrize(("topology", "copies"), [("ring", 6), ("butterfly", 6), ("broadcast", 12)])
def test_bytes_are_those_of_the_union_and_the_mask(topology: str, copies: int) -> None:
    """4 workers send, in each of 3 steps, two bytes per coordinate of the union and one bit per block."""
    ranks = Ranks(lambda: OmniReduce(block=16), 4, topology)
    expected = 0
    for step in range(3):
        xs = heavy(1003, 4, seed=step)
        total, share = 63, float(ranks.codecs[0].state_dict().get("k/flat", 1 - 0.5**0.25))
        union = union_of(xs, 16, round(share * total))
        coordinates = 16 * len(union) - (5 if 62 in union else 0)
        expected += copies * 2 * coordinates + 6 * 8
        ranks.one(xs)
    assert ranks.bytes_sent() == expected


@pytest.mark.parametrize("numel", [1, 8, 9, 255, 600])
def test_masks_are_packed_as_numpy_does(numel: int) -> None:
    mask = torch.rand(numel, generator=torch.Generator().manual_seed(numel)) < 0.4
    packed = pack_mask(mask)
    np.testing.assert_array_equal(packed.numpy(), np.packbits(mask.numpy(), bitorder="little"))
    assert torch.equal(unpack_mask(packed, numel), mask)


@pytest.mark.parametrize("block", [1, 7, 16, 256, 4096])
def test_energies_are_sums_of_squares(block: int) -> None:
    """Blocks of any length in three dtypes: exact to float32's precision, without overflow or underflow."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = heavy(1003, 1)[0].to(dtype)
        np.testing.assert_allclose(block_energies(x, block), energies(x, block), rtol=6e-7)
    extreme = torch.tensor([3e38, -3e38, 1e-38, 1e-30, 1e-44, 1e-45, 0.0, 0.0])
    np.testing.assert_allclose(block_energies(extreme, 2), energies(extreme, 2), rtol=6e-7)


def test_energies_know_no_position_and_no_unit() -> None:
    """A block has one energy wherever it lies, and 4 times that energy when it is twice as large."""
    block = heavy(700, 1)[0]
    x = torch.cat([block, heavy(700, 1, seed=1)[0], block, 2 * block])
    for length in (100, 350, 700):
        first, again, doubled = (
            block_energies(x, length)[start : start + 700 // length]
            for start in (0, 1400 // length, 2100 // length)
        )
        assert torch.equal(first, again) and torch.equal(doubled, 4 * first)


def test_many_blocks_are_measured_like_few() -> None:
    """There are more coordinates than are squared at a time."""
    x = heavy((1 << 19) + 100, 1)[0]
    np.testing.assert_allclose(block_energies(x, 256)[-3:], energies(x[-612:], 256), rtol=6e-7)


def test_of_blocks_alike_the_first_are_chosen_and_what_is_not_finite_always() -> None:
    assert largest_blocks(torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0]), 2).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert largest_blocks(torch.zeros(4), 3).tolist() == [True, True, True, False]
    infinite = torch.tensor([5.0, torch.inf, 9.0, torch.inf, torch.inf])
    assert largest_blocks(infinite, 1).tolist() == [False, True, False, True, True]
    assert largest_blocks(infinite, 4).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
def test_what_is_not_finite_arrives_where_it_was(topology: str, bad: float) -> None:
    """This holds in the smallest blocks and in more blocks than k; the rest of the bucket stays finite."""
    xs = heavy(1600, 3)
    for position in range(5, 1600, 160):
        xs[1][position // 16 * 16 : position // 16 * 16 + 16] = 0
        xs[1][position] = bad
    mean = Ranks(lambda: OmniReduce(bits=1.0, block=16), 3, topology).one(xs)
    assert (~mean.isfinite()).nonzero()[:, 0].tolist() == [*range(5, 1600, 160)]


def test_the_ends_of_float32() -> None:
    """Bfloat16 has float32's range; blocks of 1e-30 are distinguished from blocks of 1e-38."""
    x = torch.tensor([1e38, -1e-30, 1e-38, -0.0]).repeat_interleave(16)
    mean = Ranks(lambda: OmniReduce(bits=12.0, block=16), 2).one([x, x])
    torch.testing.assert_close(mean[:32], x[:32], rtol=2**-8, atol=0)
    assert not mean[32:].any()
    zeros = Ranks(lambda: OmniReduce(block=16), 2).one([-torch.zeros(100)] * 2)
    assert not zeros.any()


@pytest.mark.parametrize("topology", TOPOLOGY_NAMES)
def test_losses_are_what_the_result_lacks(topology: str) -> None:
    """Summed over the ranks they are n times the exact mean less n times the result."""
    xs = heavy(1003, 4)
    mean, losses = Ranks(lambda: OmniReduce(bits=4.0, block=16), 4, topology).one_with_losses(xs)
    lacking = 4 * (mean_of(xs) - mean.double())
    np.testing.assert_allclose(sum(loss.double() for loss in losses), lacking, atol=1e-7)
    assert lacking.abs().max() > 1e-3


@pytest.mark.parametrize(("workers", "topology"), [(2, "ring"), (4, "broadcast"), (5, "ring")])
def test_error_feedback_converges(workers: int, topology: str) -> None:
    """With one bit in sixteen sent, residuals stop growing."""
    kept = [*kept_by_feedback(lambda: OmniReduce(bits=1.0, block=16), workers, 100, topology)]
    assert max(kept[60:]) < 1.3 * max(kept[20:40]) < 20
    assert OmniReduce().refuses_feedback(64, LARGE) is None


def test_state_goes_on_bit_for_bit_and_is_named_after_the_first_parameter() -> None:
    def layout(*names: str) -> Layout:
        return Layout(names, ((500,),) * len(names), tuple(range(0, 500 * len(names), 500)), 500 * len(names))

    first, second = (Ranks(lambda: OmniReduce(block=16), 3) for _ in range(2))
    buckets = [(layout("a", "b"), 1000), (layout("c"), 500)]
    for step in range(6):
        if step == 3:
            for old, new in zip(first.codecs, second.codecs, strict=True):
                new.load_state_dict({key: value.clone() for key, value in old.state_dict().items()})
            second.steps = 3
        given = [(each, heavy(numel, 3, seed=step)) for each, numel in buckets]
        means = first.step(*given)
        if step >= 3:
            again = second.step(*given)
            assert all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in zip(means, again, strict=True))
    assert first.codecs[0].state_dict() == second.codecs[0].state_dict()
    assert set(first.codecs[0].state_dict()) == {"k/a", "k/c"}
    with pytest.raises(ValueError, match="mu"):
        OmniReduce().load_state_dict({"mu": torch.zeros(1)})


@pytest.mark.parametrize(("field", "value"), [("bits", 0.0), ("bits", 17.0), ("block", 0), ("gamma", 1.1)])
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"codec\.{field}={value}: choose"):
        OmniReduce(**{field: value})


def test_integers_are_refused() -> None:
    layout = Layout(("a",), ((4,),), (0,), 4, torch.int32)
    assert "int32" in (OmniReduce().supports("ring", 4, layout) or "")
    assert OmniReduce().supports("ring", 4, Layout.flat(4)) is None
