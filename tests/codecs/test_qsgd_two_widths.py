"""QSGD with codes of two widths by chance: the choice, the bytes, the costs, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dynamiq_reference import philox_words
from slice_rounds import (
    Cluster,
    Vector,
    dither,
    heavy_tailed,
    mean_of,
    power_near,
    refusal,
    residuals,
    ring_mean,
    sent,
    tree_sum,
)
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.codecs import qsgd
from gradwire.codecs.arithmetic.bitpack import packed_bytes
from gradwire.codecs.arithmetic.random import CoordinateBits, Key, shared_bits, stream_key
from gradwire.codecs.interface import Layout
from gradwire.codecs.options.quantized import Norm
from gradwire.codecs.qsgd import QSGD, PairCoder, lost_share, pair_costs
from gradwire.codecs.registry import make_codec

F32 = np.float32
CPU = torch.device("cpu")


def has_wider(coordinate: int, key: Key) -> bool:
    """The bit of its pair says whether the first of the two has the wider code."""
    pair = coordinate // 2
    word = philox_words((pair // 128, 0, 1, 0), key)[pair % 128 // 32]
    return bool(word >> pair % 32 & 1) == (coordinate % 2 == 0)


def reference(values: Vector, first: int, rank: int, bits: tuple[int, int], group: int, norm: str) -> Vector:
    """One encoding and decoding, coordinate by coordinate."""
    key, decoded = stream_key(0, 0, Layout.flat(1, "bucket").uid), np.empty_like(values)
    for start in range(0, len(values), group):
        own = np.zeros(group, F32)
        own[: len(values) - start] = values[start : start + group]
        unit = power_near(own)
        scale = F32(math.sqrt(tree_sum((own / unit) ** 2))) if norm == "l2" else np.abs(own / unit).max()
        for i, x in enumerate(values[start : start + group]):
            place = first + start + i
            levels = 2 ** (bits[has_wider(place, key)] - 1) - 1
            position = F32(F32(abs(x) / unit) * F32(F32(levels * 2**16) / scale)) if scale else F32(0)
            steps = int(F32(min(position, F32(levels * 2**16)) + F32(0.5)))
            level = (steps + dither(place, rank)) // 2**16
            decoded[start + i] = math.copysign(F32(level) * F32(F32(scale * unit) / F32(levels)), x)
    return decoded


@pytest.mark.parametrize(
    ("bits", "group", "norm", "unit"),
    [((2, 8), 64, "l2", 256), ((2, 8), 8, "max", 128), ((3, 16), 32, "l2", 256)],
)
def test_a_ring_is_the_references_bit_for_bit(
    bits: tuple[int, int], group: int, norm: str, unit: int
) -> None:
    """`unit` is the number of coordinates that take a multiple of 16 bytes; 701 end within a pair."""
    xs = heavy_tailed(701, 3)
    for x in xs:
        x[64:128] = 0
    mean = mean_of(lambda: QSGD(bits=list(bits), group=group, norm=norm), xs)
    expected = ring_mean(
        [x.numpy() for x in xs], unit, lambda v, first, rank: reference(v, first, rank, bits, group, norm)
    )
    np.testing.assert_array_equal(mean.numpy(), expected)


def coder(bits: tuple[int, int] = (2, 8), group: int = 512, norm: Norm = "l2", rank: int = 0) -> PairCoder:
    return PairCoder(group, bits, norm, CoordinateBits((1, 2), rank))


def test_a_coordinate_has_either_width_with_probability_one_half() -> None:
    """Over 4000 rounds every pair is near 2000, and neighbouring pairs are chosen apart."""
    rounds, pairs = 4000, 200
    chosen = torch.stack([shared_bits((step, 7), 0, pairs, CPU) for step in range(rounds)]).double()
    deviation = 0.5 / math.sqrt(rounds)
    assert (chosen.mean(dim=0) - 0.5).abs().max() < 4.5 * deviation
    together = (chosen[:, 1:] * chosen[:, :-1]).mean(dim=0)
    assert (together - 0.25).abs().max() < 4.5 * math.sqrt(0.25 * 0.75 / rounds)


def test_the_choice_is_cut_anywhere_and_not_a_ranks_own() -> None:
    whole = shared_bits((7, 8), 0, 1000, CPU)
    for first, count in ((0, 1), (127, 2), (128, 128), (300, 700)):
        assert torch.equal(shared_bits((7, 8), first, count, CPU), whole[first : first + count])
    x = torch.full((512,), 0.5)
    x[0] = 1.0
    wide = [sent(coder(norm="max", rank=rank), x)[1:].frac() != 0 for rank in range(2)]
    assert torch.equal(wide[0], wide[1]), "one level of a maximum of 1 gives 0 or 1"
    assert int(wide[0].sum()) in (255, 256)


def test_what_arrives_are_levels_of_either_width() -> None:
    (x,) = heavy_tailed(1024, 1)
    arrived = sent(coder(norm="max"), x).view(2, 512).double()
    steps = arrived / x.view(2, 512).abs().amax(dim=1, keepdim=True)
    of_narrow, of_wide = (((steps * s).round() - steps * s).abs() < 1e-4 for s in (1, 127))
    assert (of_narrow | of_wide).all()
    assert 512 <= int(of_narrow.sum()) < 1024
    near = (arrived - x.view(2, 512)).abs() < x.view(2, 512).abs().amax(dim=1, keepdim=True) / 126
    assert 512 <= int(near.sum()) < 1024


@pytest.mark.parametrize(("bits", "group"), [((2, 8), 8), ((2, 8), 512), ((3, 16), 32), ((15, 16), 64)])
def test_messages_are_as_long_as_their_parts_and_aligned(bits: tuple[int, int], group: int) -> None:
    made = coder(bits, group)
    for numel in (1, 2, 9, group, group + 1, 1000):
        pairs = (numel + 1) // 2
        codes = packed_bytes(pairs, bits[0]) + packed_bytes(pairs, bits[1])
        assert made.num_bytes(numel) == codes + 4 * -(-numel // group)
    assert made.num_bytes(made.unit) % 16 == 0 and made.unit % group == 0
    (x,) = heavy_tailed(4 * made.unit + 5, 1)
    cut = 3 * made.unit
    parts = [sent(made, x[:cut]), sent(made, x[cut:], cut)]
    assert torch.equal(torch.cat(parts), sent(made, x))


def test_wire_bits_are_five_and_the_norms_on_every_rank() -> None:
    """Along a ring twice (n − 1)/n of the bucket from every rank, at every step."""
    workers, numel = 4, 4 * 8192
    cluster = Cluster(lambda: QSGD(bits=[2, 8]), workers)
    for step in range(1, 3):
        cluster.step(heavy_tailed(numel, workers))
        assert 8 * cluster.bytes_sent() == step * 2 * (workers - 1) * numel * (5 + 32 / 512)
        totals = {traffic.total for traffic in cluster.world.traffic.values()}
        assert len(totals) == 1


@pytest.mark.parametrize(
    ("options", "workers", "topology"),
    [({}, 2, "broadcast"), ({"norm": "max", "group": 64}, 4, "ring")],
)
def test_error_feedback_is_refused_by_the_mean_of_both_shares(
    options: dict[str, Any], workers: int, topology: str
) -> None:
    codec = QSGD(bits=[2, 8], **options)
    reason = refusal(codec, 1 if topology == "broadcast" else workers)
    norm: Norm = "max" if options else "l2"
    share = (lost_share(codec.group, 1, norm) + lost_share(codec.group, 127, norm)) / 2
    assert reason is not None and "codec.bits=[2, 8]" in reason and f"{share:.2g} times" in reason
    energies = residuals(lambda: QSGD(bits=[2, 8], **options), heavy_tailed(2048, workers), topology, 30)
    assert energies[-1] > 3


def test_error_feedback_is_accepted_where_residuals_stay_small() -> None:
    options: dict[str, Any] = {"bits": [2, 8], "norm": "max", "group": 64}
    assert refusal(QSGD(**options), 1) is None
    energies = residuals(lambda: QSGD(**options), heavy_tailed(2048, 2), "broadcast", 30)
    assert energies[-1] < 3 and energies[-1] < 1.5 * energies[14]


class Moved(TorchDispatchMode):
    """Counts the bytes of all tensors that operations take and give, but for those that only make views."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        if not any(
            one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns
        ):
            leaves = torch.utils._pytree.tree_leaves((args, kwargs, given))
            self.num_bytes += sum(x.nbytes for x in leaves if isinstance(x, torch.Tensor))
        return given


@pytest.mark.parametrize("norm", ["l2", "max"])
def test_costs_are_the_bytes_that_operations_move(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing is left out: the costs count it by the operations of the benchmark."""
    numel = 1 << 16
    (x,), made = heavy_tailed(numel, 1), coder(norm=norm)
    message, codes = torch.zeros(made.num_bytes(numel), dtype=torch.uint8), torch.zeros(numel // 2).int()
    monkeypatch.setattr(qsgd, "pack", lambda *given: None)
    monkeypatch.setattr(qsgd, "unpack", lambda *given: codes)
    costs = pair_costs(2, (2, 8))
    with Moved() as encoding:
        made.encode(x, 0, message)
    assert encoding.num_bytes / numel == pytest.approx(costs["encode"].num_bytes, rel=0.1)
    with Moved() as decoding:
        made.decode_into(message, 0, x)
    assert decoding.num_bytes / numel == pytest.approx(costs["decode"].num_bytes, rel=0.1)


@pytest.mark.parametrize(
    "bits", [[], [8], [2, 2], [1, 8], [8, 2], [2, 17], [2, 4, 8], [2, 8.0], [2, "8"], [2, None], [True, 8]]
)
def test_other_lists_are_refused(bits: list[Any]) -> None:
    with pytest.raises(ValueError) as refused:
        make_codec("qsgd", bits=bits)
    message = str(refused.value)
    assert message.startswith("codec.bits=[") and "\n" not in message
    assert ": choose a whole number from 2 to 16, or a list of two of them, the smaller first" in message


def test_a_tuple_is_a_list() -> None:
    assert QSGD(bits=(2, 8)).widths == (2, 8) and make_codec("qsgd", bits=[4, 16]).widths == (4, 16)  # type: ignore[attr-defined]
