"""Codes as bits: every code at every place, against Python's integers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.codecs.dynamiq.packing import decoding_table, look_up, pack
from gradwire.codecs.dynamiq.tables import WIDTHS


def every_code_everywhere(width: int) -> Tensor:
    """Rows of 256 codes, int64: each code at each of eight neighbouring places, among others and alone; at 16
    bits, where that would be too many, each code once."""
    codes = torch.arange(1 << width)
    if width == 16:
        return codes.view(-1, 256)
    shifted = torch.stack([codes.roll(place) for place in range(8)], dim=1)
    constant = codes[:, None].expand(-1, 8)
    eights = torch.cat((shifted, constant, constant.flip(0) * torch.tensor([1, 0] * 4)))
    return torch.nn.functional.pad(eights, (0, 0, 0, -len(eights) % 32)).view(-1, 256)


def packed(codes: Tensor, width: int) -> Tensor:
    out = torch.full((len(codes), 32 * width), 0xAB, dtype=torch.uint8)
    pack(codes.to(torch.int16 if width == 16 else torch.uint8), width, out)
    return out


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_is_one_little_endian_number(width: int) -> None:
    codes = every_code_everywhere(width)
    for row, message in zip(codes.tolist(), packed(codes, width).tolist(), strict=True):
        number = sum(code << (place * width) for place, code in enumerate(row))
        assert bytes(message) == number.to_bytes(32 * width, "little")


@pytest.mark.parametrize("width", WIDTHS)
def test_sixteen_coordinates_are_bytes_of_their_own(width: int) -> None:
    """2·width of them, so that a group's codes can be read and written without its neighbours'."""
    codes = every_code_everywhere(width)[:1]
    changed = codes.clone()
    changed[0, 32:48] = (1 << width) - 1 - changed[0, 32:48]
    different = (packed(codes, width) != packed(changed, width))[0].nonzero().flatten()
    assert different.min() == 4 * width and different.max() == 6 * width - 1


@pytest.mark.parametrize("width", WIDTHS)
def test_every_code_is_looked_up(width: int) -> None:
    codes = every_code_everywhere(width)
    values = torch.randn(1 << width, generator=torch.Generator().manual_seed(width))
    decoded = look_up(packed(codes, width), decoding_table(values, width))
    assert decoded.dtype == torch.float32 and torch.equal(decoded, values[codes])
