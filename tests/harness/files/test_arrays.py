"""Arrays and compressed streams: their headers must be true, and within bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gradwire.harness.files import hostile
from gradwire.harness.files.hostile import BoundedStream, most_unfolded, read_npz, read_safetensors
from gradwire.harness.files.reading import UnusableFileError

WAY_OUT = "mend it"


def header(value: Any, data: bytes = b"") -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


BAD_SAFETENSORS = {
    "header too large": pickle.dumps({"weights": [1, 2]}),
    "header too small": b"",
    "invalid type: sequence": header(b"[" * 100_000),
    "invalid type: sequence, expected": header([]),
    "EOF while parsing an object": header(b"{"),
    "invalid type: integer `1`, expected a string": header({"__metadata__": {"a": 1}}),
    "invalid type: integer `5`": header({"a": 5}),
    "unknown variant `F31`": header(tensor(dtype="F31"), bytes(8)),
    "invalid value: integer `-2`": header(tensor(shape=[-2]), bytes(8)),
    "invalid shape, data type, or offset": header(tensor(shape=[2**40]), bytes(8)),
    "file not fully covered": header(tensor(), bytes(4)),
    "incomplete metadata, file not fully covered": header(tensor(), bytes(12)),
    "invalid offset for tensor `a`": header(tensor(data_offsets=[4, 12]), bytes(12)),
}


@pytest.mark.parametrize("problem", BAD_SAFETENSORS)
def test_a_safetensors_file_is_what_its_header_says(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_bytes(BAD_SAFETENSORS[problem])
    with pytest.raises(UnusableFileError, match="mend it$") as caught:
        read_safetensors(path, remedy=WAY_OUT)
    assert problem in str(caught.value)


def test_safetensors_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    saved = {
        "bfloat16": torch.randn(3, 4).bfloat16(),
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(True),
        "long": torch.arange(5),
    }
    save_file(saved, path, metadata={"layout": "{}"})
    found, metadata = read_safetensors(path, remedy=WAY_OUT)
    assert metadata == {"layout": "{}"}
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) for name in saved)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array))
    return file.getvalue()


def archive(path: Path, *members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def described(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def refused(path: Path) -> str:
    with pytest.raises(UnusableFileError, match="mend it$") as caught:
        read_npz(path, ("gradients",), remedy=WAY_OUT)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_an_npz_is_read_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    np.savez_compressed(path, gradients=values, layout=np.array("{}"), other=np.zeros(3))
    found = read_npz(path, ("gradients", "layout", "bf16"), remedy=WAY_OUT)
    assert sorted(found) == ["gradients", "layout"]
    assert np.array_equal(found["gradients"], values)
    assert str(found["layout"]) == "{}"


def test_an_npz_that_makes_too_much_of_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "ARRAY_FLOOR", 2**20)
    path, member = tmp_path / "file.npz", "gradients.npy"
    zeros = npy(np.zeros(2**21, np.uint8))
    said = "expands to 2 MiB, more than 1 MiB, the most at its size (save it with numpy.savez, which does not"
    assert said in refused(archive(path, (member, zeros)))
    np.savez(path, gradients=np.zeros(2**21, np.uint8))
    assert not read_npz(path, ("gradients",), remedy=WAY_OUT)["gradients"].any()
    half = npy(np.zeros(2**19 + 2**18, np.uint8))
    archive(path, (member, half), ("layout.npy", half))
    with pytest.raises(UnusableFileError, match="expands to 768 KiB, more than 256 KiB"):
        read_npz(path, ("gradients", "layout"), remedy=WAY_OUT)


def test_an_npz_that_lies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, member = tmp_path / "file.npz", "gradients.npy"
    assert "described as 4 GiB, 0 bytes are there" in refused(archive(path, (member, described((2**30,)))))
    assert "neither numbers nor text" in refused(archive(path, (member, described((1,), "|O") + bytes(8))))
    assert "neither numbers nor text" in refused(archive(path, (member, described((2**60,), "|S0"))))
    assert "described as -4 bytes" in refused(archive(path, (member, described((-1,)) + bytes(8))))
    assert "ValueError" in refused(archive(path, (member, b"no array at all")))
    assert "no array gradients" in refused(archive(path, ("weights.npy", npy(1.0))))
    packed = archive(path, (member, npy(np.zeros(9))), compression=zipfile.ZIP_BZIP2)
    assert "packed in a way that numpy never uses" in refused(packed)
    path.write_bytes(path.read_bytes()[:-30])
    assert "BadZipFile" in refused(path)
    path.write_bytes(npy(np.array([{"a": 1}], dtype=object)))
    assert "BadZipFile" in refused(path)
    monkeypatch.setattr(hostile, "MOST_DIRECTORY", 10_000)
    many = [(f"{index:0100}", b"") for index in range(100)]
    assert "has a list of entries longer" in refused(archive(path, (member, npy(1.0)), *many))


@pytest.mark.parametrize("bit", range(16))
def test_an_npz_is_packed_as_numpy_packs_it(bit: int, tmp_path: Path) -> None:
    """One of a member's flags says that it is encrypted; some others make it another member."""
    path = archive(tmp_path / "file.npz", ("gradients.npy", npy(np.ones(3, np.float32))))
    content = bytearray(path.read_bytes())
    for place in (6, content.index(b"PK\x01\x02") + 8):
        content[place + bit // 8] |= 1 << bit % 8
    path.write_bytes(content)
    if bit == 0:
        assert "is packed in a way that numpy never uses" in refused(path)
    elif bit in (1, 2, 3, 11):
        assert read_npz(path, ("gradients",), remedy=WAY_OUT)["gradients"].tolist() == [1, 1, 1]
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        archive(path, ("gradients.npy", npy(np.ones(3))), compression=compression)
        assert "is packed in a way that numpy never uses" in refused(path)


def test_the_checksum_of_an_array_is_compared_wherever_its_stream_ends(tmp_path: Path) -> None:
    """Some writers end a stream with an empty block, behind all that numpy needs."""
    path, content = tmp_path / "file.npz", npy(np.arange(5000))
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH) + packer.flush()
    for crc in (zlib.crc32(content), zlib.crc32(content) ^ 1):
        archive(path, ("gradients.npy", packed), compression=zipfile.ZIP_STORED)
        whole = bytearray(path.read_bytes())
        entry = whole.rindex(b"PK\x01\x02")  # the list of members: how each is packed, its checksum and sizes
        struct.pack_into("<H", whole, entry + 10, zipfile.ZIP_DEFLATED)
        struct.pack_into("<III", whole, entry + 16, crc, len(packed), len(content))
        path.write_bytes(whole)
        if crc == zlib.crc32(content):
            assert np.array_equal(
                read_npz(path, ("gradients",), remedy=WAY_OUT)["gradients"], np.arange(5000)
            )
        else:
            assert "Bad CRC-32" in refused(path)


def test_honest_zeros_are_read(tmp_path: Path) -> None:
    """Zeros are packed 1,000 to one, more than bombs of text are; only the memory they take counts."""
    path = tmp_path / "file.npz"
    np.savez_compressed(path, gradients=np.zeros((4, 2**22), np.float16))
    assert 2**25 / path.stat().st_size > 900
    assert read_npz(path, ("gradients",), remedy=WAY_OUT)["gradients"].shape == (4, 2**22)
    assert 300 * 2**20 < hostile.ARRAY_FLOOR < 500 * 10**6


def test_a_compressed_stream_ends_where_it_becomes_a_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for opener in (gzip, bz2):
        path = tmp_path / "text"
        path.write_bytes(opener.compress(b"a line\n" * 10**5))
        for most, fits in ((700_000, True), (699_999, False)):
            monkeypatch.setattr(hostile, "FLOOR", most)
            stream = BoundedStream(path, path.open("rb"), opener.open, remedy=WAY_OUT)
            with io.TextIOWrapper(io.BufferedReader(stream), "utf-8") as text:
                if fits:
                    assert text.read().count("\n") == 10**5
                else:
                    with pytest.raises(UnusableFileError, match="expands to more than 684 KiB from "):
                        text.read()


def test_what_may_unfold_to_how_much() -> None:
    assert most_unfolded(10, 200) == 16 * 2**20
    assert most_unfolded(2**30, 200) == 200 * 2**30
    assert most_unfolded(10, 200, floor=3000) == 3000
