"""Files of saved gradients: written ones are read back, others' are read, bad ones are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from damages import DAMAGES, flipped, one_line
from safetensors.torch import save_file

from gradwire.codecs.interface import Layout
from gradwire.harness.record.gradients import (
    SavedGradients,
    described_gradients,
    read_gradients,
    write_gradients,
)

LAYOUTS = (Layout(("a", "b"), ((2, 3), (4,)), (0, 6), 10), Layout(("c",), ((5,),), (0,), 5))
VALUES = torch.arange(45, dtype=torch.float32).view(3, 15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_written_is_read_back(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "new" / "step3.safetensors"
    write_gradients(path, VALUES.to(dtype), LAYOUTS, {"step": 3})
    found = read_gradients(path)
    assert torch.equal(found.values, VALUES.to(dtype))
    assert [(layout.names, layout.shapes, layout.offsets, layout.numel) for layout in found.buckets] == [
        (layout.names, layout.shapes, layout.offsets, layout.numel) for layout in LAYOUTS
    ]
    assert {layout.dtype for layout in found.buckets} == {dtype}
    assert found.about is not None
    assert found.about["step"] == 3
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_description_has_everything_but_the_values(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "step3.safetensors"
    write_gradients(path, VALUES.to(dtype), LAYOUTS, {"step": 3})
    whole, found = read_gradients(path), described_gradients(path)
    assert (found.workers, found.numel, found.values.dtype) == (3, 15, dtype) and found.values.is_meta
    assert found.buckets == whole.buckets and found.about == whole.about
    save_file({"gradients": VALUES.double()}, path)
    with pytest.raises(ValueError, match="gradients is F64, not float32, float16 or bfloat16; give one that"):
        described_gradients(path)
    save_file({"others": VALUES}, path)
    with pytest.raises(ValueError, match="it has no array gradients; give one that measure"):
        described_gradients(path)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_npz(dtype: type, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", gradients=VALUES.numpy().astype(dtype))
    found = read_gradients(tmp_path / "own.npz")
    assert torch.equal(found.values.float(), VALUES)
    assert found.values.element_size() == np.dtype(dtype).itemsize
    assert found.buckets == ()
    assert (found.workers, found.numel) == (3, 15)


def test_npz_with_bfloat16_as_integers_and_a_layout(tmp_path: Path) -> None:
    bits = VALUES.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    text = json.dumps({"buckets": [{"names": ["w"], "shapes": [[3, 5]]}]})
    np.savez_compressed(tmp_path / "own.npz", bf16=bits, layout=text)
    found = read_gradients(tmp_path / "own.npz")
    assert torch.equal(found.values, VALUES.to(torch.bfloat16))
    assert found.buckets[0].shapes == ((3, 5),)


def of_a_run(path: Path, values: torch.Tensor) -> None:
    write_gradients(path, values, LAYOUTS, {"step": 3})


def of_others(path: Path, values: torch.Tensor) -> None:
    save_file({"gradients": values}, path)


def stored(path: Path, values: torch.Tensor) -> None:
    np.savez(path, gradients=values.numpy())


def packed(path: Path, values: torch.Tensor) -> None:
    np.savez_compressed(path, gradients=values.numpy())


WRITERS: dict[Callable[[Path, torch.Tensor], None], str] = {
    of_a_run: "a.safetensors",
    of_others: "a.safetensors",
    stored: "a.npz",
    packed: "a.npz",
}


def as_written(path: Path, whole: SavedGradients) -> bool | None:
    """True if the file holds `VALUES` and has the description and buckets of `whole`; None if it is refused,
    in one line that names it."""
    try:
        found = read_gradients(path)
    except ValueError as error:
        one_line(str(error))
        assert str(path) in str(error)
        return None
    assert (found.about, found.buckets) == (whole.about, whole.buckets)
    return torch.equal(found.values, VALUES)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_damaged_file_is_refused(write: Callable[[Path, torch.Tensor], None], tmp_path: Path) -> None:
    """A flipped bit among the numbers of a `.safetensors` that no run wrote cannot be noticed: the file has
    no checksum. Another file's contents are taken as they are."""
    path, other = tmp_path / WRITERS[write], tmp_path / "other" / WRITERS[write]
    other.parent.mkdir()
    write(path, VALUES)
    write(other, VALUES + 1)
    content, whole = path.read_bytes(), read_gradients(path)
    for damage, change in DAMAGES.items():
        path.write_bytes(change(content, other.read_bytes()))
        found = as_written(path, whole)
        if damage == "another's" or (
            write is of_others and damage in ("a bit in the middle", "a bit near the end")
        ):
            assert found is False, damage
        elif damage in ("undecodable", "a secret") and path.suffix == ".npz":
            assert found, "what is before or behind an archive is not part of it"
        else:
            assert found is None, damage


@pytest.mark.parametrize("write", [of_a_run, stored, packed], ids=lambda write: write.__name__)
def test_no_flipped_bit_changes_a_number(write: Callable[[Path, torch.Tensor], None], tmp_path: Path) -> None:
    """Wherever the bit is, the file is refused, or the bit does not belong to its contents."""
    path = tmp_path / WRITERS[write]
    write(path, VALUES)
    content, whole = path.read_bytes(), read_gradients(path)
    refused = 0
    for at in range(len(content)):
        path.write_bytes(flipped(content, at))
        found = as_written(path, whole)
        assert found is not False, at
        refused += found is None
    assert refused > VALUES.nbytes if write is not packed else refused > 100


def test_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o026)
    try:
        of_a_run(tmp_path / "gradients" / "a.safetensors", VALUES)
    finally:
        os.umask(before)
    (file,) = (tmp_path / "gradients").iterdir()
    assert file.stat().st_mode & 0o777 == 0o640


def test_anonymous_gradients_are_cut_into_equal_buckets() -> None:
    gradients = SavedGradients(torch.zeros(2, 1000))
    assert [layout.numel for layout in gradients.layouts(25.0)] == [1000]
    layouts = gradients.layouts(300 * 4 / 2**20)
    assert [layout.numel for layout in layouts] == [250] * 4
    assert len({layout.uid for layout in layouts}) == 4
    assert [layout.numel for layout in SavedGradients(torch.zeros(2, 7)).layouts(12 / 2**20)] == [3, 3, 1]


def bad_files(folder: Path) -> dict[str, str]:
    """Name of a file -> what its refusal says."""
    np.savez(folder / "names.npz", other=VALUES.numpy())
    np.savez(folder / "flat.npz", gradients=VALUES.numpy().ravel())
    np.savez(folder / "integers.npz", gradients=VALUES.numpy().astype(np.int64))
    np.savez(folder / "objects.npz", gradients=np.array([{"a": 1}], dtype=object))
    np.savez(folder / "signed.npz", bf16=VALUES.numpy().astype(np.int16))
    np.savez(folder / "empty.npz", gradients=np.zeros((4, 0), dtype=np.float32))
    np.savez(
        folder / "buckets.npz",
        gradients=VALUES.numpy(),
        layout=json.dumps({"buckets": [{"names": ["w"], "shapes": [[3, 4]]}]}),
    )
    np.savez(folder / "text.npz", gradients=VALUES.numpy(), layout="no JSON")
    for name, shapes in {"sides": [[-1], [16]], "none": [[0], [15]]}.items():
        text = json.dumps({"buckets": [{"names": ["v", "w"], "shapes": shapes}]})
        np.savez(folder / f"{name}.npz", gradients=VALUES.numpy(), layout=text)
    for name, layout in {"list": "[1]", "without": "{}", "number": '{"buckets": 1}'}.items():
        np.savez(folder / f"{name}.npz", gradients=VALUES.numpy(), layout=layout)
    for name, bucket in {
        "unnamed": '{"shapes": [[15]]}',
        "bare": "7",
        "nameless": '{"names": [], "shapes": []}',
    }.items():
        np.savez(folder / f"{name}.npz", gradients=VALUES.numpy(), layout=f'{{"buckets": [{bucket}]}}')
    (folder / "words.npz").write_text("no archive\n")
    (folder / "broken.npz").write_bytes(b"PK nothing")
    (folder / "broken.safetensors").write_bytes(b"\x00" * 40)
    save_file({"weights": VALUES}, folder / "names.safetensors")
    (folder / "table.csv").write_text("1,2\n")
    return {
        "names.npz": "it has other, and no array gradients or bf16",
        "flat.npz": r"shape \(45,\), not \(workers, coordinates\)",
        "integers.npz": "int64, not float32 or float16",
        "objects.npz": "neither numbers nor text",
        "words.npz": "cannot be read .BadZipFile",
        "sides.npz": "a side of less than 1",
        "none.npz": "a side of less than 1",
        "list.npz": "its layout is a list, not an object",
        "without.npz": "its layout is not a mapping with a list of buckets",
        "number.npz": "its layout is not a mapping with a list of buckets",
        "unnamed.npz": "names",
        "bare.npz": "names",
        "nameless.npz": "a bucket has 0 names and 0 shapes",
        "signed.npz": "int16, not uint16",
        "empty.npz": r"shape \(4, 0\)",
        "buckets.npz": "buckets have 12 coordinates, gradients has 15",
        "text.npz": "its layout is not JSON",
        "broken.npz": "cannot be read",
        "broken.safetensors": "invalid JSON in header",
        "names.safetensors": "it has no array gradients",
        "table.csv": r"is neither a \.safetensors nor a \.npz file",
        "absent.npz": "not found",
    }


def test_bad_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, message in bad_files(tmp_path).items():
        with pytest.raises(ValueError, match=message) as refused:
            read_gradients(tmp_path / name)
        assert name in str(refused.value)
        assert "\n" not in str(refused.value)
