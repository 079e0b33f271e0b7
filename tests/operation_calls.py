"""Calls of every operation that has compiled kernels, to compare devices and implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic import bitpack
from gradwire.codecs.arithmetic.bitpack import packed_bytes
from gradwire.codecs.arithmetic.hadamard import transform
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq.allocation import paper_increments
from gradwire.codecs.dynamiq.arrangement import ArrangementRule, Chunks, arrange, write_statistics
from gradwire.codecs.dynamiq.codebooks import chosen_values
from gradwire.codecs.dynamiq.definition import Coder, Dither, OrderedChunk
from gradwire.codecs.dynamiq.format import ChunkSize, numbers_of, used_bytes
from gradwire.codecs.dynamiq.hops import make_hop
from gradwire.codecs.edgc.sampler import add_histogram
from gradwire.codecs.linear.definition import (
    MessageFormat,
    linear_add,
    linear_dequantize,
    linear_quantize,
    linear_reduce,
)
from gradwire.codecs.mxfp import definition as mxfp
from gradwire.codecs.mxfp.formats import BY_WIDTH, SharedScales
from gradwire.codecs.omnireduce import write_energies
from gradwire.codecs.onebit import SignCoder
from gradwire.codecs.options.dynamiq import Format, ScaleRounding, ValueKind
from gradwire.codecs.options.quantized import Norm, ScaleRule
from gradwire.codecs.qsgd import LevelCoder
from gradwire.codecs.slices import GroupCoder
from gradwire.codecs.tfp.coder import Refinement, coder_of
from gradwire.codecs.thc.blocks import QuantizationTable, cut
from gradwire.codecs.thc.definition import BlockQuantizer, Randomness
from gradwire.codecs.thc.ranges import Ranges, write_root_mean_squares

Arguments = tuple[Any, ...]

KEY = (0x1234_5678, 0xDEAD_BEEF)

RANDOM = CoordinateBits(KEY, 3)

REFINEMENT = Refinement(4, 9, "embedded")

UNIFORM = tuple(range(16))
"""THC's table of four bits."""


def encode(coder: GroupCoder, values: Tensor, out: Tensor) -> None:
    coder.encode(values, 0, out)


def add_encode(coder: GroupCoder, message: Tensor, sums: Tensor, out: Tensor) -> None:
    coder.accumulate_encode(message, 0, sums, out)


def decode(coder: GroupCoder, message: Tensor, values: Tensor) -> None:
    coder.decode_into(message, 0, values)


def add(coder: GroupCoder, message: Tensor, sums: Tensor) -> None:
    coder.accumulate(message, 0, sums)


def hop(
    x: Tensor | None,
    sums: Tensor | None,
    incoming: Tensor | None,
    outgoing: Tensor | None,
    new_sums: Tensor | None,
    result: Tensor | None,
    order: Tensor,
    mean: Tensor,
    numel: int,
    counts: dict[int, int],
    kind: ValueKind,
    epsilons: dict[int, float],
    message_format: Format,
    rounding: ScaleRounding,
) -> None:
    """One `Hop.run` of worker 1 of 5."""
    group = message_format.group
    tables = {
        width: chosen_values(width, kind, epsilon, order.device, group, message_format.codebooks)
        for width, epsilon in epsilons.items()
    }
    coder = Coder(tables, Dither(KEY, 1, 5, "correlated", group), rounding, message_format)
    bucket = x if x is not None else result
    dtype = torch.float32 if bucket is None else bucket.dtype
    made = make_hop(numel, dtype, OrderedChunk(order, mean, numbers_of(counts, order.device)), coder)
    made.run(x=x, sums=sums, incoming=incoming, outgoing=outgoing, new_sums=new_sums, result=result)


def plan(
    mean_sum: Tensor, norm: Tensor, spare: list[int], order: Tensor, mean: Tensor, counts: Tensor
) -> None:
    """The plan among 5 workers, with 2, 4 and 8 bits."""
    total, chunks = norm.numel(), len(spare)
    sizes = tuple(
        ChunkSize(len(range(chunk, total, chunks)), 0, spare[chunk], False) for chunk in range(chunks)
    )
    rule = ArrangementRule(paper_increments((2, 4, 8)), Format())
    made = arrange(mean_sum, norm, 5, Chunks(sizes), rule)
    for filled, found in ((order, made.order), (mean, made.mean), (counts, made.numbers)):
        filled.copy_(found)


def mxfp_quantize(
    x: Tensor, maxima: Tensor, mu: float, rule: ScaleRule, width: int, out: Tensor, saturated: Tensor
) -> None:
    mxfp.quantize(x, SharedScales(maxima, mu, rule, 1), BY_WIDTH[width], out, saturated)


def mxfp_add(own: Tensor, message: Tensor, width: int, saturated: Tensor) -> None:
    mxfp.add(own, message, BY_WIDTH[width], saturated)


def mxfp_dequantize(
    packed: Tensor, maxima: Tensor, mu: float, rule: ScaleRule, width: int, out: Tensor
) -> None:
    mxfp.dequantize(packed, SharedScales(maxima, mu, rule, 3), BY_WIDTH[width], out)


def thc_quantize(
    x: Tensor, root_mean_squares: Tensor, block: int, entries: tuple[int, ...], integers: Tensor
) -> None:
    thc_quantizer(x.numel(), block, root_mean_squares, entries).quantize(x, integers)


def thc_dequantize(sums: Tensor, root_mean_squares: Tensor, block: int, mean: Tensor) -> None:
    thc_quantizer(sums.numel(), block, root_mean_squares, UNIFORM).dequantize(sums, 1, mean)


def thc_quantizer(
    numel: int, block: int, root_mean_squares: Tensor, entries: tuple[int, ...]
) -> BlockQuantizer:
    ranges, table = Ranges(root_mean_squares, 2.154), QuantizationTable(entries)
    return BlockQuantizer(cut(numel, block), ranges, table, Randomness(KEY, 1))


OPERATIONS: dict[str, Callable[..., None]] = {
    "dynamiq_hop": hop,
    "super_group_statistics": write_statistics,
    "dynamiq_plan": plan,
    "pack_bits": bitpack.pack,
    "unpack_bits": bitpack.write_values,
    "add_bits": bitpack.unpack_add,
    "add_and_pack_bits": bitpack.add_and_pack,
    "hadamard_transform": transform,
    **{
        f"{family}_{name}": function
        for family in ("levels", "signs", "tfp")
        for name, function in (
            ("encode", encode),
            ("add_encode", add_encode),
            ("decode", decode),
            ("add", add),
        )
    },
    "tfp_plane": REFINEMENT.plane,
    "tfp_refine": REFINEMENT.join,
    "tfp_refine_decode": REFINEMENT.decode,
    "tfp_refine_add": REFINEMENT.add,
    "mxfp_maxima": mxfp.write_maxima,
    "mxfp_quantize": mxfp_quantize,
    "mxfp_add": mxfp_add,
    "mxfp_dequantize": mxfp_dequantize,
    "linear_quantize": linear_quantize,
    "linear_dequantize": linear_dequantize,
    "linear_add": linear_add,
    "linear_reduce": linear_reduce,
    "thc_root_mean_squares": write_root_mean_squares,
    "thc_quantize": thc_quantize,
    "thc_dequantize": thc_dequantize,
    "block_energies": write_energies,
    "sampled_histogram": add_histogram,
}
"""The operations that write to given tensors, by name."""


def call(name: str, *arguments: Any) -> None:
    """Run an operation."""
    OPERATIONS[name](*arguments)


SPECIAL = (torch.nan, torch.inf, -torch.inf, 3.4e38, -3.38e38, 1e-38, -3e-42, -0.0, 2.0**-100, 1e19)
"""Values that arithmetic treats specially."""

_spread = [0]


def values(numel: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Heavy-tailed, with some zeros; special numbers among them if `calls_of_all` requests these."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[:: 1 + numel // 5] = 0
    if _spread[0]:
        for index, number in enumerate(SPECIAL):
            x[300 * index + 7 * seed :: _spread[0]] = number
        x[-400:-200] *= 2.0**-130
    return x.to(dtype)


def room(numel: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """An output tensor; its contents do not matter."""
    return torch.full((numel * dtype.itemsize,), 0x5B, dtype=torch.uint8).view(dtype)


def dynamiq(numel: int, dtype: torch.dtype) -> list[Arguments]:
    """A hop of every kind: encode, pass on, accumulate, decode to sums and to the result."""
    calls: list[Arguments] = []
    total = -(-numel // 256)
    order, mean = torch.arange(total, dtype=torch.int32).flip(0), values(total, torch.float32, 3) * 1e-3
    plus = ((2, 3, 4, 5, 6, 8, 16), "distinct", 4, 32, "ceil")
    for widths, kind, codebooks, group, rounding in (
        ((2, 4, 8), "nonuniform", 1, 16, "stochastic"),
        plus,
        ((1, 4), "uniform", 1, 32, "ceil"),
    ):
        counts = dict.fromkeys(widths, total // len(widths))
        counts[widths[-1]] += total - sum(counts.values())
        message_format = Format(widths, group, codebooks=codebooks)
        size = align(used_bytes(counts, message_format)) + 16
        epsilons = {width: min(max(0.06, 0.9 / width), 0.5) if width > 1 else 0.1 for width in widths}
        settings = (order, mean, numel, counts, kind, epsilons, message_format, rounding)
        x, message, passed = values(numel, dtype, 1), room(size), room(size)
        sums = values(total * 256, torch.float32, 4).view(-1, 256)
        call("dynamiq_hop", x, None, None, message, None, None, *settings)
        calls.append((x, None, None, room(size), None, None, *settings))
        calls.append((x, None, message, passed, None, None, *settings))
        calls.append((None, sums, message, None, sums.clone(), None, *settings))
        calls.append((None, None, message, None, None, room(numel, dtype), *settings))
    return calls


def group_codes(numel: int, dtype: torch.dtype) -> dict[str, list[Arguments]]:
    """Codecs that send groups of coordinates one by one: TFP with its refinements, QSGD, 1-bit SGD."""
    x, sums = values(numel, dtype, 1), values(numel, torch.float32, 2)
    calls: dict[str, list[Arguments]] = {}

    def codec(name: str, coder: GroupCoder) -> Tensor:
        size = coder.num_bytes(numel)
        message = room(size)
        call(f"{name}_encode", coder, x, message)
        calls.setdefault(f"{name}_encode", []).append((coder, x, room(size)))
        for operation, written in (("decode", room(numel, torch.float32)), ("add", sums)):
            calls.setdefault(f"{name}_{operation}", []).append((coder, message, written))
        calls.setdefault(f"{name}_add_encode", []).append((coder, message, sums, room(size)))
        return message

    for bits, norm in ((4, "l2"), (8, "max")):
        codec("levels", LevelCoder(512, bits, cast(Norm, norm), RANDOM))
    codec("signs", SignCoder(256, 1))
    for bits, base, random in ((4, "scaled", RANDOM), (8, "plain", None), (12, "plain", RANDOM)):
        codec("tfp", coder_of(bits, base, random))
    message = codec("tfp", REFINEMENT.less_coder)
    plane, larger = room(packed_bytes(numel, 5)), REFINEMENT.coder.num_bytes(numel)
    call("tfp_plane", x, plane)
    calls["tfp_plane"] = [(x, room(plane.numel()))]
    calls["tfp_refine"] = [(message, plane, numel, room(larger))]
    calls["tfp_refine_decode"] = [(message, plane, room(numel, torch.float32))]
    calls["tfp_refine_add"] = [(message, plane, sums)]
    return calls


def bit_streams(numel: int) -> dict[str, list[Arguments]]:
    eights = -(-numel // 8) * 8
    names = ("pack_bits", "unpack_bits", "add_bits", "add_and_pack_bits")
    calls: dict[str, list[Arguments]] = {name: [] for name in names}
    for bits in (1, 3, 4, 12, 17, 32):
        codes = torch.randint(1 << min(bits, 30), (eights,), dtype=torch.int32)
        packed = room(packed_bytes(eights, bits))
        call("pack_bits", codes, bits, packed)
        calls["pack_bits"].append((codes, bits, room(packed.numel())))
        calls["unpack_bits"].append((packed, bits, room(eights, torch.int32)))
        calls["add_bits"].append((packed, bits, codes.clone()))
        own, sums = codes & 0 if bits < 32 else codes.clone(), room(eights, torch.int32)
        calls["add_and_pack_bits"].append((packed, bits, own, room(packed.numel()), sums))
    return calls


def microscaling(numel: int, dtype: torch.dtype) -> dict[str, list[Arguments]]:
    """MXFP8, MXFP6 and MXFP4."""
    x, blocks = values(numel, dtype, 1), -(-numel // 32)
    maxima = room(blocks, torch.bfloat16)
    call("mxfp_maxima", x, maxima)
    calls: dict[str, list[Arguments]] = {"mxfp_maxima": [(x, room(blocks, torch.bfloat16))]}
    for width, rule in ((8, "bf16_mu"), (6, "e8m0_floor"), (4, "e8m0_even")):
        packed, saturated = room(blocks * 4 * width), torch.zeros((), dtype=torch.int64)
        call("mxfp_quantize", x, maxima, 1.5, rule, width, packed, saturated)
        quantize = (x, maxima, 1.5, rule, width, room(packed.numel()), torch.zeros((), dtype=torch.int64))
        calls.setdefault("mxfp_quantize", []).append(quantize)
        calls.setdefault("mxfp_add", []).append((packed.clone(), packed, width, torch.zeros_like(saturated)))
        means = (packed, maxima, 1.5, rule, width, room(numel, dtype))
        calls.setdefault("mxfp_dequantize", []).append(means)
    return calls


def linear(numel: int, dtype: torch.dtype) -> dict[str, list[Arguments]]:
    """SDP4Bit's int8 and int4."""
    x = values(numel, dtype, 1)
    calls: dict[str, list[Arguments]] = {}
    for bits, group, scale, hadamard, stochastic in (
        (4, 128, "float32", True, False),
        (8, 128, "bfloat16", False, True),
        (4, 2048, "float32", False, False),
    ):
        form = MessageFormat(bits, group, scale)
        message = room(form.num_bytes(numel))
        rest = (form, hadamard, RANDOM if stochastic else None)
        call("linear_quantize", x, message, *rest)
        calls.setdefault("linear_quantize", []).append((x, room(message.numel()), *rest))
        decoding = (form, hadamard)
        calls.setdefault("linear_dequantize", []).append((message, room(numel, dtype), *decoding))
        calls.setdefault("linear_add", []).append((message, values(numel, dtype, 2), *decoding))
        messages = torch.stack((message, message, message))
        calls.setdefault("linear_reduce", []).append((messages, room(numel, torch.float32), *decoding))
    return calls


def rotation(numel: int, dtype: torch.dtype) -> dict[str, list[Arguments]]:
    """The Hadamard transform, and THC around it."""
    rows = values(3 << 14, torch.float32, 5).view(3, -1)
    calls: dict[str, list[Arguments]] = {"hadamard_transform": [(rows,), (rows.view(-1, 64).clone(),)]}
    x, blocks = values(numel, dtype, 1), cut(numel, 1 << 14)
    norms = room(blocks.count, torch.float32)
    calls["thc_root_mean_squares"] = [(x, 1 << 14, room(blocks.count, torch.float32))]
    call("thc_root_mean_squares", x, 1 << 14, norms)
    integers = room(blocks.total, torch.int32)
    call("thc_quantize", x, norms, 1 << 14, UNIFORM, integers)
    calls["thc_quantize"] = [
        (x, norms, 1 << 14, UNIFORM, room(blocks.total, torch.int32)),
        (x, norms, 1 << 14, (0, 2, 5, 9), room(blocks.total, torch.int32)),
    ]
    calls["thc_dequantize"] = [(integers, norms, 1 << 14, room(blocks.total, dtype))]
    return calls


def statistics(numel: int, dtype: torch.dtype) -> dict[str, list[Arguments]]:
    """The operations that count and reduce before gradients are sent."""
    x, total = values(numel, dtype, 1), -(-numel // 256)
    mean, norm = (room(total, torch.bfloat16) for _ in range(2))
    call("super_group_statistics", x, mean, norm)
    order, means, counts = room(total, torch.int32), room(total, torch.float32), room(3 * 17, torch.int32)
    spare = [32 * -(-total // 3)] * 3
    return {
        "super_group_statistics": [(x, *(room(total, torch.bfloat16) for _ in range(2)))],
        "dynamiq_plan": [(mean, norm, spare, order, means, counts.view(3, 17))],
        "block_energies": [(x, 256, room(total, torch.float64))],
        "sampled_histogram": [(x, 4, 7, torch.zeros(4097, dtype=torch.int64))],
    }


def calls_of_all(numel: int, dtype: torch.dtype, special: bool = False) -> dict[str, list[Arguments]]:
    """By operation, the arguments of some calls with buckets of `numel` coordinates of `dtype`, with NaN,
    infinities, subnormal and the largest numbers among them if `special`."""
    _spread[0] = 3500 if special else 0
    try:
        return _calls_of_all(numel, dtype)
    finally:
        _spread[0] = 0


def _calls_of_all(numel: int, dtype: torch.dtype) -> dict[str, list[Arguments]]:
    families: tuple[Callable[[int, torch.dtype], dict[str, list[Arguments]]], ...] = (
        group_codes,
        microscaling,
        linear,
        rotation,
        statistics,
    )
    found: dict[str, list[Arguments]] = {"dynamiq_hop": dynamiq(numel, dtype), **bit_streams(numel)}
    for family in families:
        found |= family(numel, dtype)
    return found
