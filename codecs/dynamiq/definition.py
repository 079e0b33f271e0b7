"""What a hop does to one chunk, in plain PyTorch: the definition that compiled kernels reproduce (DynamiQ
§4).

Rows are the chunk's partial sums, (super-groups, 256) float32, in the order of its message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, unpacked
from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.dynamiq.codebooks import Codebooks, marked, mirrored, unmarked
from gradwire.codecs.dynamiq.format import Section, clear_unused, counts_of, sections
from gradwire.codecs.dynamiq.rounding import Dither, Keys
from gradwire.codecs.dynamiq.scales import group_steps, inverse_maxima, scale_groups, scale_value
from gradwire.codecs.dynamiq.values import Values, as_tensor
from gradwire.codecs.options.dynamiq import SUPER_GROUP, Format, ScaleRounding


@dataclass(frozen=True)
class Coder:
    """What the operations of one worker need in one round: values per width, randomness, rule of scales, and
    what a message looks like."""

    values: Mapping[int, Values | Codebooks]
    dither: Dither
    scale_rounding: ScaleRounding
    format: Format


def compress(
    rows: Tensor, super_groups: Tensor, counts: Mapping[int, int], coder: Coder, message: Tensor
) -> None:
    """Write the whole message (uint8) of a chunk; `super_groups` (int64) are the rows' indices in the bucket,
    `counts` the super-groups of each width. What shares a bf16 scale with a non-finite value decodes to NaN.
    """
    for section in sections(message, counts, coder.format):
        keys = coder.dither.keys(super_groups[section.rows])
        _compress_section(rows[section.rows], keys, coder, section)
    clear_unused(message, counts, coder.format)


def _compress_section(rows: Tensor, keys: Keys, coder: Coder, section: Section) -> None:
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
    """The rows that a message stands for."""
    rows = torch.empty(sum(counts.values()), SUPER_GROUP, device=message.device)
    for section in sections(message, counts, coder.format):
        rows[section.rows] = _decompressed(section, coder)
    return rows


def _decompressed(section: Section, coder: Coder) -> Tensor:
    """(g, 256) float32."""
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


class ReferenceHop:
    """The hops of one chunk in one round of one worker, see `hops.Hop`."""

    def __init__(self, numel: int, order: Tensor, mean: Tensor, counts: Tensor, coder: Coder) -> None:
        order = order.long()
        self._order, self._mean = order, mean
        self._counts, self._coder = counts_of(counts, coder.format.widths), coder
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
        """Write the means that sums stand for to their places in the bucket."""
        inverse = constant(1, rows) / constant(self._coder.dither.workers, rows)
        means = rows * inverse + self._mean[:, None]
        result[self._places[self._present]] = means[self._present].to(result.dtype)
