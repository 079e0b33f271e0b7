"""The codecs' quantizers as operators of PyTorch, `torch.ops.gradwire.*`, once this module is imported.

The operators are for users who compile a model or write their own codec. Each takes tensors and numbers and
returns new tensors; PyTorch's dispatcher runs it, `kernels` selects the implementation, and a fake
implementation lets `torch.compile` trace it. The codecs themselves call the underlying functions, which write
to given buffers.

A tensor to quantize has any shape and a floating dtype, and its `numel` values come back as (numel,) float32.
Messages are uint8. Rounding at random is a function of `seed`, 64 bits, and `rank`, the worker.
"""

from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import pack, packed_bytes, unpack
from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.codecs.arithmetic.random import CoordinateBits, Key
from gradwire.codecs.linear.definition import MessageFormat
from gradwire.codecs.linear.definition import linear_dequantize as write_values
from gradwire.codecs.linear.definition import linear_quantize as write_message
from gradwire.codecs.mxfp.definition import block_bytes, block_maxima, num_blocks
from gradwire.codecs.mxfp.definition import dequantize as dequantize_elements
from gradwire.codecs.mxfp.definition import quantize as quantize_elements
from gradwire.codecs.mxfp.formats import BY_WIDTH, SharedScales
from gradwire.codecs.native.call import readable
from gradwire.codecs.onebit import SignCoder
from gradwire.codecs.options.quantized import Norm, ScaleRule
from gradwire.codecs.qsgd import LevelCoder
from gradwire.codecs.slices import GroupCoder
from gradwire.codecs.tfp.coder import coder_of
from gradwire.codecs.thc.blocks import QuantizationTable, cut
from gradwire.codecs.thc.definition import BlockQuantizer, Randomness
from gradwire.codecs.thc.ranges import Ranges, block_root_mean_squares


@torch.library.custom_op("gradwire::hadamard", mutates_args=())
def hadamard(rows: Tensor) -> Tensor:
    """The normalized Walsh-Hadamard transform of each row of `rows`, (m, d) float32, d a power of two."""
    return hadamard_(rows.clone(memory_format=torch.contiguous_format))


hadamard.register_fake(lambda rows: rows.new_empty(rows.shape))


@torch.library.custom_op("gradwire::pack_bits", mutates_args=())
def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """The little-endian stream of int32 `codes` in [0, 2^bits), whose count is a multiple of 8."""
    stream = _bytes(packed_bytes(codes.numel(), bits), codes)
    pack(codes.contiguous(), bits, stream)
    return stream


pack_bits.register_fake(lambda codes, bits: _bytes(packed_bytes(codes.numel(), bits), codes))


@torch.library.custom_op("gradwire::unpack_bits", mutates_args=())
def unpack_bits(stream: Tensor, bits: int) -> Tensor:
    """Unpacks a stream that `pack_bits` made: int32."""
    return unpack(stream, bits)


unpack_bits.register_fake(
    lambda stream, bits: stream.new_empty(stream.numel() // bits * 8, dtype=torch.int32)
)


@torch.library.custom_op("gradwire::linear_quantize", mutates_args=())
def linear_quantize(
    x: Tensor, bits: int, group: int, scales: str, hadamard: bool, stochastic: bool, seed: int, rank: int
) -> Tensor:
    """SDP4Bit's message of `bits`, 4 or 8, with a scale of dtype `scales` for every `group` coordinates,
    smoothed by `hadamard`; rounded to nearest unless `stochastic`."""
    x = _flat(x)
    form = MessageFormat(bits, group, scales)
    message = _bytes(form.num_bytes(x.numel()), x)
    write_message(x, message, form, hadamard, CoordinateBits(_key(seed), rank) if stochastic else None)
    return message


linear_quantize.register_fake(
    lambda x, *settings: _bytes(MessageFormat(*settings[:3]).num_bytes(x.numel()), x)
)


@torch.library.custom_op("gradwire::linear_dequantize", mutates_args=())
def linear_dequantize(
    message: Tensor, numel: int, bits: int, group: int, scales: str, hadamard: bool
) -> Tensor:
    """Decodes a message that `linear_quantize` made with the same settings."""
    values = _values(numel, message)
    write_values(message, values, MessageFormat(bits, group, scales), hadamard)
    return values


linear_dequantize.register_fake(lambda message, numel, *_: _values(numel, message))


@torch.library.custom_op("gradwire::mxfp_quantize", mutates_args=())
def mxfp_quantize(x: Tensor, width: int, rule: str, mu: float) -> tuple[Tensor, Tensor]:
    """Packed elements of MXFP8, 6 or 4, and the bf16 maxima of their blocks of 32, from which the scales are
    computed with μ by `rule`, one of `ScaleRule`."""
    x, element = _flat(x), BY_WIDTH[width]
    maxima = block_maxima(x)
    elements, saturated = _bytes(len(maxima) * block_bytes(element), x), x.new_zeros((), dtype=torch.int64)
    quantize_elements(x, SharedScales(maxima, mu, cast(ScaleRule, rule), 1), element, elements, saturated)
    return elements, maxima


@mxfp_quantize.register_fake
def _mxfp_quantized(x: Tensor, width: int, rule: str, mu: float) -> tuple[Tensor, Tensor]:
    blocks = num_blocks(x.numel())
    return _bytes(blocks * block_bytes(BY_WIDTH[width]), x), x.new_empty(blocks, dtype=torch.bfloat16)


@torch.library.custom_op("gradwire::mxfp_dequantize", mutates_args=())
def mxfp_dequantize(elements: Tensor, maxima: Tensor, numel: int, width: int, rule: str, mu: float) -> Tensor:
    """Decodes the result of `mxfp_quantize`."""
    values = _values(numel, elements)
    scales = SharedScales(maxima, mu, cast(ScaleRule, rule), 1)
    dequantize_elements(elements, scales, BY_WIDTH[width], values)
    return values


mxfp_dequantize.register_fake(lambda elements, maxima, numel, *_: _values(numel, elements))


@torch.library.custom_op("gradwire::qsgd_quantize", mutates_args=())
def qsgd_quantize(x: Tensor, bits: int, group: int, norm: str, seed: int, rank: int) -> Tensor:
    """QSGD's message: `bits` for each coordinate, and a norm, `l2` or `max`, for every `group` of them."""
    return _encoded(_flat(x), _qsgd(bits, group, norm, seed, rank))


qsgd_quantize.register_fake(lambda x, *settings: _bytes(_qsgd(*settings).num_bytes(x.numel()), x))


@torch.library.custom_op("gradwire::qsgd_dequantize", mutates_args=())
def qsgd_dequantize(message: Tensor, numel: int, bits: int, group: int) -> Tensor:
    """Decodes a message that `qsgd_quantize` made."""
    return _qsgd(bits, group, "max", 0, 0).decode(message, 0, numel)


qsgd_dequantize.register_fake(lambda message, numel, *_: _values(numel, message))


@torch.library.custom_op("gradwire::onebit_quantize", mutates_args=())
def onebit_quantize(x: Tensor, block: int) -> Tensor:
    """1-bit SGD's message: the sign of each coordinate, and two means for every `block` of them."""
    return _encoded(_flat(x), SignCoder(block, 1))


onebit_quantize.register_fake(lambda x, block: _bytes(SignCoder(block, 1).num_bytes(x.numel()), x))


@torch.library.custom_op("gradwire::onebit_dequantize", mutates_args=())
def onebit_dequantize(message: Tensor, numel: int, block: int) -> Tensor:
    """Decodes a message that `onebit_quantize` made."""
    return SignCoder(block, 1).decode(message, 0, numel)


onebit_dequantize.register_fake(lambda message, numel, block: _values(numel, message))


@torch.library.custom_op("gradwire::tfp_quantize", mutates_args=())
def tfp_quantize(x: Tensor, bits: int, base: str, stochastic: bool, seed: int, rank: int) -> Tensor:
    """TFP's payload of `bits` (at least 2) for each coordinate; `base` is `plain`, `scaled` or `embedded`."""
    random = CoordinateBits(_key(seed), rank) if stochastic else None
    return _encoded(_flat(x), coder_of(bits, base, random))


tfp_quantize.register_fake(lambda x, bits, base, *_: _bytes(coder_of(bits, base).num_bytes(x.numel()), x))


@torch.library.custom_op("gradwire::tfp_dequantize", mutates_args=())
def tfp_dequantize(message: Tensor, numel: int, bits: int, base: str) -> Tensor:
    """Decodes a payload that `tfp_quantize` made."""
    return coder_of(bits, base).decode(message, 0, numel)


tfp_dequantize.register_fake(lambda message, numel, *_: _values(numel, message))


@torch.library.custom_op("gradwire::thc_quantize", mutates_args=())
def thc_quantize(
    x: Tensor, block: int, entries: list[int], t_p: float, seed: int, rank: int
) -> tuple[Tensor, Tensor]:
    """THC's integers, int32 in [0, g], and the root mean square of every block of at most `block`
    coordinates, float32.

    The table's `entries` ascend from 0 to g. Coordinates are clamped to t_p times their block's root mean
    square.
    """
    x = _flat(x)
    blocks = cut(x.numel(), block)
    ranges = Ranges(block_root_mean_squares(x, blocks), t_p)
    integers = x.new_empty(blocks.total, dtype=torch.int32)
    table = QuantizationTable(tuple(entries))
    BlockQuantizer(blocks, ranges, table, Randomness(_key(seed), rank)).quantize(x, integers)
    return integers, ranges.root_mean_squares


@thc_quantize.register_fake
def _thc_quantized(
    x: Tensor, block: int, entries: list[int], t_p: float, seed: int, rank: int
) -> tuple[Tensor, Tensor]:
    blocks = cut(int(x.numel()), block)  # how a bucket is cut depends on its very length
    return x.new_empty(blocks.total, dtype=torch.int32), _values(blocks.count, x)


@torch.library.custom_op("gradwire::thc_dequantize", mutates_args=())
def thc_dequantize(
    sums: Tensor,
    root_mean_squares: Tensor,
    numel: int,
    workers: int,
    block: int,
    entries: list[int],
    t_p: float,
    seed: int,
) -> Tensor:
    """Decodes sums of the integers of `workers` workers to their mean, given the maximum over the workers of
    their `root_mean_squares`."""
    blocks, ranges, randomness = cut(numel, block), Ranges(root_mean_squares, t_p), Randomness(_key(seed), 0)
    mean = _values(blocks.total, sums)
    BlockQuantizer(blocks, ranges, QuantizationTable(tuple(entries)), randomness).dequantize(
        sums, workers, mean
    )
    return mean[:numel].clone()


thc_dequantize.register_fake(lambda sums, root_mean_squares, numel, *_: _values(numel, sums))


def _qsgd(bits: int, group: int, norm: str, seed: int, rank: int) -> LevelCoder:
    return LevelCoder(group, bits, cast(Norm, norm), CoordinateBits(_key(seed), rank))


def _encoded(x: Tensor, coder: GroupCoder) -> Tensor:
    message = _bytes(coder.num_bytes(x.numel()), x)
    coder.encode(x, 0, message)
    return message


def _flat(x: Tensor) -> Tensor:
    return readable(x.contiguous().view(-1))


def _key(seed: int) -> Key:
    return seed & 0xFFFF_FFFF, seed >> 32 & 0xFFFF_FFFF


def _bytes(numel: int, like: Tensor) -> Tensor:
    return like.new_empty(numel, dtype=torch.uint8)


def _values(numel: int, like: Tensor) -> Tensor:
    return like.new_empty(numel, dtype=torch.float32)
