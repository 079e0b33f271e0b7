"""One hop of DynamiQ in plain PyTorch, which compiled kernels reproduce, and the dither that decides which
way a coordinate is rounded (DynamiQ §3.3, §3.4).

Correlated: among the n workers' uniforms for one coordinate exactly one falls into each of the n intervals
[k/n, (k + 1)/n), so that errors of a sum cancel. Worker i's interval is (σ(i) + s) mod n: σ is the rank of
its hash among the workers' hashes for this super-group, s a shift all workers share for this coordinate.
Within the interval the workers differ by a private 16-bit key per group. Independent: 16 private bits a
coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, unpacked
from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.random import Key, halves, mix32, philox4x32
from gradwire.codecs.dynamiq.codebooks import Codebooks, marked, mirrored, unmarked
from gradwire.codecs.dynamiq.format import (
    CodeSection,
    clear_unused,
    counts_of,
    group_steps,
    inverse_maxima,
    scale_groups,
    scale_value,
    sections,
)
from gradwire.codecs.dynamiq.values import Values, as_tensor
from gradwire.codecs.options.dynamiq import SUPER_GROUP, Format, Rounding, ScaleRounding

MAX_WORKERS = 256
"""Dithers are integers below n·2¹⁶ that must be exact in float32."""

_RESOLUTION = 1 << 16


@dataclass(frozen=True)
class Keys:
    """One worker's random numbers for some super-groups, apart from those drawn per coordinate.

    `super_groups` (rows,) int64 are their indices in the bucket, `order` (rows,) int32 is σ·2¹⁶, `within`
    (rows, groups) int32 the 16-bit key within an interval, `scale_noise` (rows, groups) int32 an integer
    below 2¹⁶.
    """

    super_groups: Tensor
    order: Tensor
    within: Tensor
    scale_noise: Tensor

    def __getitem__(self, rows: slice) -> Keys:
        return Keys(self.super_groups[rows], self.order[rows], self.within[rows], self.scale_noise[rows])


@dataclass(frozen=True)
class Dither:
    """The randomness of one worker in one round; `key` comes from seed, step and the bucket's uid, `group` is
    the number of coordinates that share a scale, `key_place` is `Round.key_place`."""

    key: Key
    rank: int
    workers: int
    rounding: Rounding
    group: int = 16
    key_place: Tensor | None = None

    @property
    def range(self) -> int:
        """N: dithers are integers in [0, N)."""
        return _RESOLUTION * (self.workers if self.rounding == "correlated" else 1)

    def private_words(self, super_groups: Tensor) -> Tensor:
        """32 bits per group that only this worker uses, (rows, groups) int64: the low half is the key within
        an interval, the high half rounds the group's scale."""
        base = mix32(super_groups ^ self.key[1])[:, None] + self.key[0]
        group = torch.arange(SUPER_GROUP // self.group, device=super_groups.device) * 0xC2B2_AE35
        return mix32(base + (self.rank + 1) * 0x85EB_CA6B + group)

    def worker_order(self, super_groups: Tensor) -> Tensor:
        """σ: this worker's place in an order of the workers drawn for each super-group, (rows,) int64."""
        base = mix32(super_groups ^ self.key[0]) + self.key[1]
        worker = torch.arange(self.workers, device=super_groups.device)[:, None]
        hashes = mix32(base + worker * 0x27D4_EB2F) & ~0xFF | worker  # ties: by worker
        return (hashes < hashes[self.rank]).sum(dim=0)

    def keys(self, super_groups: Tensor) -> Keys:
        """The keys of (rows,) int64 super-group indices."""
        words = self.private_words(super_groups)
        shift = self.worker_order(super_groups).to(torch.int32) << 16
        return Keys(super_groups, shift, (words & 0xFFFF).to(torch.int32), (words >> 16).to(torch.int32))

    def coordinate_bits(self, super_groups: Tensor, stream: int) -> Tensor:
        """16 bits per coordinate of (rows,) int64 super-group indices: (rows, 256) int32. Stream 0 is
        shared by all workers, stream rank + 1 is private."""
        zero = torch.zeros((), dtype=torch.int64, device=super_groups.device)
        block = torch.arange(SUPER_GROUP // 8, device=super_groups.device)
        return halves(philox4x32((super_groups[:, None], zero + stream, block, zero), self.key))

    def integers(self, keys: Keys) -> Tensor:
        """The dither V of every coordinate, uniform on [0, N): (rows, 256) int32; u = (V + ½)/N."""
        if self.rounding == "independent":
            return self.coordinate_bits(keys.super_groups, self.rank + 1)
        shared = self.coordinate_bits(keys.super_groups, 0)
        interval = (shared * self.workers + keys.order[:, None]) % self.range
        return interval ^ keys.within.repeat_interleave(self.group, dim=1)

    def centred(self, keys: Keys) -> Tensor:
        """V + ½ − N/2 as float32, exactly: symmetric about 0, so that its negative is the mirrored dither."""
        return self.integers(keys).to(torch.float32) - (self.range - 1) / 2


@dataclass(frozen=True)
class Coder:
    """The parameters of one worker's operations in one round: values per width, randomness, the rounding of
    scales, and the message format."""

    values: Mapping[int, Values | Codebooks]
    dither: Dither
    scale_rounding: ScaleRounding
    format: Format


def compress(
    rows: Tensor, super_groups: Tensor, counts: Mapping[int, int], coder: Coder, message: Tensor
) -> None:
    """Write the whole message (uint8) of a chunk; `super_groups` (int64) are the rows' indices in the bucket,
    `counts` the super-groups of each width. Values that share a bf16 scale with a non-finite value decode to
    NaN."""
    for section in sections(message, counts, coder.format):
        keys = coder.dither.keys(super_groups[section.rows])
        _compress_section(rows[section.rows], keys, coder, section)
    clear_unused(message, counts, coder.format)


def _compress_section(rows: Tensor, keys: Keys, coder: Coder, section: CodeSection) -> None:
    values, message_format = coder.values[section.width], coder.format
    magnitude = _grouped(rows.abs(), message_format)
    scaling = scale_groups(magnitude.amax(dim=2), keys.scale_noise, coder.scale_rounding, message_format)
    y, patterns, signed = magnitude * scaling.factor[:, :, None], scaling.patterns, rows
    if isinstance(values, Codebooks):
        choice = values.choose(y, scaling.reference, scaling.silent, rows)
        patterns, signed = marked(patterns, choice), mirrored(rows, choice)
        values = values.of_rows(choice)
    y = y * inverse_maxima(values.span, scaling.reference)[:, :, None]
    y = y.masked_fill(scaling.silent[:, :, None], 0).view(-1, SUPER_GROUP)
    codes = values.codes(y, _scaled_dither(rows, keys, coder.dither, values), signed)
    section.codes.copy_(packed(codes, section.width))
    section.group_scales.copy_(scaling.group_scales)
    section.scales.copy_(patterns)


def _scaled_dither(rows: Tensor, keys: Keys, dither: Dither, values: Values) -> Tensor:
    """w = centre ± d·(step/N), with the sign of the row's values: (g, 256) float32."""
    unit = as_tensor(values.step, rows) / constant(dither.range, rows)
    scaled = dither.centred(keys) * unit
    return torch.where(rows.signbit(), -scaled, scaled) + values.centre


def decompress(message: Tensor, counts: Mapping[int, int], coder: Coder) -> Tensor:
    """The rows that a message encodes: (super-groups, 256) float32."""
    rows = torch.empty(sum(counts.values()), SUPER_GROUP, device=message.device)
    for section in sections(message, counts, coder.format):
        rows[section.rows] = _decompressed(section, coder)
    return rows


def _decompressed(section: CodeSection, coder: Coder) -> Tensor:
    """The decoded rows of a section: (g, 256) float32."""
    values, message_format = coder.values[section.width], coder.format
    codes = unpacked(section.codes, section.width).view(-1, SUPER_GROUP)
    scales = section.scales.to(torch.int32)
    if isinstance(values, Codebooks):
        codes = codes + values.tables(section.scales)
    if message_format.codebooks > 1:
        scales = unmarked(scales)
    if message_format.scales == "bf16":
        steps = scale_value(section.group_scales.to(torch.int32))
    else:
        steps = group_steps(scales, section.group_scales)
    return (_grouped(values.decoded[codes], message_format) * steps[:, :, None]).view(-1, SUPER_GROUP)


def _grouped(rows: Tensor, message_format: Format) -> Tensor:
    return rows.view(-1, message_format.groups, message_format.group)


class OrderedChunk(NamedTuple):
    """The super-groups of a chunk in the order of its messages: indices `order`, (super-groups,) int32, and
    the `mean` of each, float32; `counts` (17,) int32 says how many of them have each width."""

    order: Tensor
    mean: Tensor
    counts: Tensor


class ReferenceHop:
    """The hops of one chunk in one round of one worker, see `hops.Hop`."""

    def __init__(self, numel: int, chunk: OrderedChunk, coder: Coder) -> None:
        order = chunk.order.long()
        self._order, self._mean = order, chunk.mean
        self._counts, self._coder = counts_of(chunk.counts, coder.format.widths), coder
        places = order[:, None] * SUPER_GROUP + torch.arange(SUPER_GROUP, device=order.device)
        self._places, self._present = places, places < numel

    def run(
        self,
        *,
        x: Tensor | None = None,
        sums: Tensor | None = None,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
        new_sums: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        rows = sums if x is None else self._gathered(x)
        if incoming is not None:
            received = decompress(incoming, self._counts, self._coder)
            rows = received if rows is None else rows + received
        assert rows is not None, "nothing to sum"
        if outgoing is not None:
            compress(rows, self._order, self._counts, self._coder, outgoing)
            rows = decompress(outgoing, self._counts, self._coder) if result is not None else rows
        if new_sums is not None:
            new_sums.copy_(rows)
        if result is not None:
            self._scatter(rows, result)

    def _gathered(self, x: Tensor) -> Tensor:
        """The chunk's super-groups less their means; zeros beyond the bucket's end, unless a mean is NaN."""
        mean = self._mean[:, None]
        values = x[self._places.clamp(max=x.numel() - 1)].to(torch.float32)
        return (values - mean).masked_fill(~self._present & mean.isfinite(), 0)

    def _scatter(self, rows: Tensor, result: Tensor) -> None:
        """Write the means, computed from the sums in `rows`, to their places in the bucket."""
        inverse = constant(1, rows) / constant(self._coder.dither.workers, rows)
        means = rows * inverse + self._mean[:, None]
        result[self._places[self._present]] = means[self._present].to(result.dtype)
