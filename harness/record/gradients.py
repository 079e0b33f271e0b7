"""Files of saved gradients: every worker's gradient of one step, one row each.

`.safetensors` or `.npz` with an array `gradients` of shape (workers, coordinates), float32, float16 or (in
`.safetensors`) bfloat16; an `.npz` may hold bfloat16 as uint16 in an array `bf16` instead. Files written by a
run also describe the buckets and parameters that coordinates belong to, as JSON: in the metadata of
`.safetensors`, or in a string array `layout` of an `.npz`. A digest of the array and the description reveals
damage; an `.npz` has checksums of its own, `.safetensors` from elsewhere have none. Nothing is ever
unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.harness.files.hostile import (
    array_in_safetensors,
    read_npz,
    read_safetensors,
)
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.typed import made
from gradwire.harness.files.writing import save_tensors

GRADIENTS, BF16, LAYOUT, DIGEST = "gradients", "bf16", "layout", "blake2b"
SUFFIXES = (".safetensors", ".npz")
REMEDY = "give one that measure.save_gradients_at or numpy.savez wrote"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""These types by their names in `.safetensors`."""


@dataclass(frozen=True)
class SavedGradients:
    """One step's gradients: `values` is (workers, coordinates) on the CPU, bucket by bucket.

    `buckets` holds their layouts, empty if the file has none; `about` is the writer's description of the
    step and of the run.
    """

    values: Tensor
    buckets: tuple[Layout, ...] = ()
    about: Mapping[str, Any] | None = None

    @property
    def workers(self) -> int:
        return self.values.shape[0]

    @property
    def numel(self) -> int:
        """Number of coordinates of one worker."""
        return self.values.shape[1]

    def layouts(self, bucket_mb: float) -> tuple[Layout, ...]:
        """The file's buckets; if it has none, equal anonymous ones of at most `bucket_mb` MiB in float32, as
        in DistributedDataParallel."""
        if self.buckets:
            return self.buckets
        count = math.ceil(4 * self.numel / (bucket_mb * 2**20))
        each = math.ceil(self.numel / count)
        starts = range(0, self.numel, each)
        return tuple(
            replace(Layout.flat(min(each, self.numel - start), f"bucket{index}"), dtype=self.values.dtype)
            for index, start in enumerate(starts)
        )


def read_gradients(path: str | Path) -> SavedGradients:
    """Returns the gradients in a file; raises ValueError in one line, with what is allowed, if they cannot be
    read."""
    return read_rows(path, GRADIENTS, REMEDY)


def described_gradients(path: str | Path) -> SavedGradients:
    """Returns what a file says of its gradients: its `values` have a shape and a dtype, and no data.

    Reads only the header of a `.safetensors` file, so that damage to the data goes unnoticed. Raises
    ValueError as `read_gradients` does.
    """
    return read_rows(path, GRADIENTS, REMEDY, described=True)


def read_rows(path: str | Path, array: str, remedy: str, *, described: bool = False) -> SavedGradients:
    """Returns the rows of a file's `array`, or with `described` no data of them; raises ValueError in one
    line, ending in `remedy`, if they cannot be read."""
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES or not path.is_file():
        problem = (
            "is a folder"
            if path.is_dir()
            else "is neither a .safetensors nor a .npz file"
            if path.is_file()
            else "not found"
        )
        raise ValueError(f"{array}={path}: {problem}; give a {' or '.join(SUFFIXES)} file")
    try:
        if path.suffix == ".safetensors":
            values, text = _described_array(path, array) if described else _read_safetensors(path, array)
        else:
            values, text = _read_npz(path)
        values = values.to("meta") if described else values
        _check(values, array)
        about = None
        if text:
            about = parse_json(text.encode(), path, remedy=remedy, where="its layout ")
        buckets = () if about is None else _buckets(about, values, path)
    except UnusableFileError as error:
        raise ValueError(f"{array}={error}") from None
    except ValueError as error:
        raise ValueError(f"{array}={path} cannot be used: {error}; {remedy}") from None
    return SavedGradients(values, buckets, about)


def check_finite(values: Tensor, path: str) -> None:
    """Raises ValueError, naming worker and coordinate, for the first value in a file that is not finite."""
    for worker, row in enumerate(values):
        wrong = ~row.isfinite()
        if bool(wrong.any()):
            coordinate = int(wrong.int().argmax())
            raise ValueError(
                f"gradients={path}: coordinate {coordinate} of worker {worker} is {float(row[coordinate])}; "
                "give gradients that are finite"
            )


def cached_gradients(path: str) -> SavedGradients:
    """`read_gradients`, cached as long as the file does not change and few others are read."""
    place = Path(path).expanduser()
    status = place.stat() if place.is_file() else None
    if status is None:
        return read_gradients(place)  # says what is wrong
    return _read_version(place, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=2)
def _read_version(path: Path, version: tuple[int, int]) -> SavedGradients:
    assert version
    return read_gradients(path)


def write_gradients(
    path: Path, values: Tensor, layouts: Sequence[Layout], about: Mapping[str, Any] | None = None
) -> None:
    """Writes (workers, coordinates) gradients of `layouts`, bucket by bucket, to a `.safetensors` file.

    The file is written atomically. `about` is added to its description.
    """
    write_rows(path, GRADIENTS, values, layouts, about)


def write_rows(
    path: Path, array: str, values: Tensor, layouts: Sequence[Layout], about: Mapping[str, Any] | None
) -> None:
    """Writes (rows, coordinates) `values` of `layouts` as `array` of a `.safetensors` file."""
    text = json.dumps({**(about or {}), "buckets": [_described(layout) for layout in layouts]})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        values = values.contiguous()
        save_tensors(temporary, {array: values}, {LAYOUT: text, DIGEST: _digest(values, text)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_safetensors(path: Path, array: str) -> tuple[Tensor, str]:
    tensors, metadata = read_safetensors(path, (array,), remedy=REMEDY)
    if array not in tensors:
        raise ValueError(f"it has no array {array}")
    values, text = tensors[array], metadata.get(LAYOUT, "")
    if DIGEST in metadata and metadata[DIGEST] != _digest(values, text):
        raise ValueError("it is damaged: its contents differ from their digest")
    return values, text


def _described_array(path: Path, array: str) -> tuple[Tensor, str]:
    found = array_in_safetensors(path, array, remedy=REMEDY)
    if found is None:
        raise ValueError(f"it has no array {array}")
    shape, name, metadata = found
    if name not in STORED:
        raise ValueError(f"{array} is {name}, not float32, float16 or bfloat16")
    return torch.empty(shape, dtype=STORED[name], device="meta"), metadata.get(LAYOUT, "")


def _digest(values: Tensor, text: str) -> str:
    """A digest of contiguous values and their description."""
    digest = hashlib.blake2b(text.encode(), digest_size=32)
    digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_npz(path: Path) -> tuple[Tensor, str]:
    found = read_npz(path, (GRADIENTS, BF16, LAYOUT), remedy=REMEDY)
    text = str(found[LAYOUT]) if LAYOUT in found else ""
    if GRADIENTS in found:
        if found[GRADIENTS].dtype not in (np.float32, np.float16):
            raise ValueError(f"its array {GRADIENTS} is {found[GRADIENTS].dtype}, not float32 or float16")
        return torch.from_numpy(np.ascontiguousarray(found[GRADIENTS])), text
    if BF16 not in found:
        raise ValueError(f"it has no array {GRADIENTS} or {BF16}")
    bits = found[BF16]
    if bits.dtype != np.uint16:
        raise ValueError(f"its array {BF16} is {bits.dtype}, not uint16")
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16), text


def _check(values: Tensor, array: str) -> None:
    if values.dim() != 2 or not values.numel():
        raise ValueError(f"{array} has shape {tuple(values.shape)}, not (workers, coordinates)")
    if values.dtype not in DTYPES:
        raise ValueError(f"{array} is {values.dtype}, not float32, float16 or bfloat16")


def _described(layout: Layout) -> dict[str, Any]:
    return {"names": list(layout.names), "shapes": [list(shape) for shape in layout.shapes]}


@dataclass(frozen=True)
class _Bucket:
    """The description of a bucket in a layout."""

    names: list[str]
    shapes: list[list[int]]


def _buckets(about: Mapping[str, Any], values: Tensor, path: Path) -> tuple[Layout, ...]:
    """The layouts described in a file's text. Raises ValueError unless they cover the coordinates."""
    if not isinstance(about, Mapping) or not isinstance(about.get("buckets"), list):
        raise ValueError("its layout is not a mapping with a list of buckets")
    layouts = []
    for each in about["buckets"]:
        bucket = made(_Bucket, each if isinstance(each, dict) else {}, path, remedy=REMEDY)
        shapes = tuple(tuple(shape) for shape in bucket.shapes)
        ends = list(accumulate(math.prod(shape) for shape in shapes))
        names = tuple(bucket.names)
        if len(names) != len(shapes) or not names:
            raise ValueError(f"a bucket has {len(names)} names and {len(shapes)} shapes")
        if any(side < 1 for shape in shapes for side in shape):
            raise ValueError(f"{names[0]} or another one of its bucket has a side of less than 1")
        layouts.append(Layout(names, shapes, (0, *ends[:-1]), ends[-1], values.dtype))
    described = sum(layout.numel for layout in layouts)
    if described != values.shape[1]:
        raise ValueError(f"its buckets have {described} coordinates, {GRADIENTS} has {values.shape[1]}")
    return tuple(layouts)
