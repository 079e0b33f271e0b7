"""Opens files that promise or expand to gigabytes, in little memory. A test runs it as a program of its own.

`python bombs.py FOLDER` makes them in FOLDER, limits the memory of its process to `MOST` bytes more than it
has then, opens each, and prints a JSON object: what was tried to what was said of it and the seconds it took.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import shutil
import struct
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from damages import DAMAGES
from tiny import TINY_MODEL

from gradwire.harness.checkpoint.folder import CheckpointState
from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.checkpoint.write import seal, write_files
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.data.cache import cached_folder
from gradwire.harness.data.text import TextCorpus
from gradwire.harness.record.gradients import read_gradients, write_gradients
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.timing.trace import blocks
from gradwire.harness.timing.trace.files import header, read_traces, trace_file
from gradwire.harness.timing.trace.writer import cut_traces
from gradwire.harness.trainer.settings import RunConfig

MOST = 500 * 10**6
COUNT = 120
"""Parts of 16 MiB: two gigabytes."""
TRILLION = 10**12

Case = Callable[[], Any]


def main(folder: Path) -> None:
    cases = dict(_cases(folder))
    start = _limit()
    found = {"start": [f"{start} bytes", 0.0]}
    for name, case in cases.items():
        begun = time.process_time()
        try:
            said = str(case())
        except ValueError as error:
            said = str(error)
        found[name] = [said, time.process_time() - begun]
    print(json.dumps(found))


def _limit() -> int:
    """Bounds the memory that this process may write to; returns how much it has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    start = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (start + MOST, start + MOST))
    try:
        bytearray(MOST + 2**20)
    except MemoryError:
        return start
    raise SystemExit("RLIMIT_DATA bounds nothing here")


def _cases(folder: Path) -> Iterator[tuple[str, Case]]:
    settings = validate(compose([*TINY_MODEL, "cluster=virtual", "cluster.workers=2"]))
    whole = _run(settings, folder / "whole")
    yield "a whole run", _resuming(settings, shutil.copytree(whole, folder / "opened"))
    yield from _damaged_records(settings, whole, folder)
    done = Path(shutil.copytree(whole, folder / "done"))
    mark_done(done)
    os.truncate(done / "steps.jsonl", TRILLION)
    yield "load: steps.jsonl of a finished run, a trillion bytes", _reading(done)
    yield from _tensors(settings, whole, folder)
    yield from _traces(folder / "traced")
    yield from _other_files(folder)


def _run(settings: RunConfig, directory: Path) -> Path:
    """An unfinished run with a checkpoint after four steps."""
    directory.mkdir(parents=True)
    open_run(settings, directory)
    writer = RunWriter(directory)
    writer.add_steps({"step": n, "loss": 1.5, "train_time_s": n, "step_time_s": 1} for n in range(4))
    writer.add_evaluation({"step": 4, "train_time_s": 4})
    num_files = write_files(directory, 4, {"model": {"weight": torch.zeros(8)}})
    state = CheckpointState(4, "", "", [1.0] * 2, 1.0, [{}] * 2, run_id(settings), writer.flush())
    seal(directory, state, num_files, 2)
    return directory


def _resuming(settings: RunConfig, run: Path) -> Case:
    return lambda: " | ".join(open_run(settings, run).notes)


def _reading(run: Path) -> Case:
    def read() -> str:
        found = load_run(run)
        return f"{found.status} {found.reason[:300]}"

    return read


CHECKPOINT = "checkpoints/step-00000004"
FILES = ("config.yaml", "run.json", "steps.jsonl", "evals.jsonl", "DONE", "FAILED", "trace/rank0.arrows.zst")
PARTS = ("state.json", "DONE", "model.safetensors")
SPARSE = {"256 MiB of zeros": 2**28, "a trillion bytes": TRILLION}
"""Sparse files: they take no space on the disk."""
LARGE = ("brackets", "a header of brackets", "aliases", "9 MB of one line")


def _damaged_records(settings: RunConfig, whole: Path, folder: Path) -> Iterator[tuple[str, Case]]:
    """Every file of a run, long, very long, or made of many brackets."""
    for name in (*FILES, *(f"{CHECKPOINT}/{part}" for part in PARTS)):
        for damage in (*LARGE, *SPARSE):
            if name not in ("DONE", "FAILED"):
                place = folder / "resumed" / damage / name.replace("/", "-")
                _damage(shutil.copytree(whole, place) / name, damage)
                yield f"resume: {name}, {damage}", _resuming(settings, place)
            if "/" not in name:
                place = folder / "read" / damage / name
                _damage(shutil.copytree(whole, place) / name, damage)
                yield f"load: {name}, {damage}", _reading(place)


def _damage(path: Path, damage: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if damage in DAMAGES:
        path.write_bytes(DAMAGES[damage](b"", b""))
    else:
        path.write_bytes(b"")
        os.truncate(path, SPARSE[damage])


def _forge(checkpoint: Path, name: str, content: bytes) -> None:
    """Puts a file into a checkpoint, with digests that fit, which cannot happen by accident."""
    (checkpoint / name).write_bytes(content)
    state = json.loads((checkpoint / "state.json").read_text())
    state["files"][name] = hashlib.sha256(content).hexdigest()
    text = json.dumps(state)
    (checkpoint / "state.json").write_text(text)
    (checkpoint / "DONE").write_text(hashlib.sha256(text.encode()).hexdigest())


def _tensors(settings: RunConfig, whole: Path, folder: Path) -> Iterator[tuple[str, Case]]:
    """Headers that announce a trillion bytes, in the header itself or in a tensor."""
    place, described = folder / "tensors", {"dtype": "U8", "shape": [TRILLION], "data_offsets": [0, TRILLION]}
    text = json.dumps({"gradients": described}).encode()
    headers = {
        "a header": struct.pack("<Q", TRILLION) + b"{}",
        "a tensor": struct.pack("<Q", len(text)) + text,
    }
    place.mkdir()
    for name, content in headers.items():
        path = place / f"{name}.safetensors"
        path.write_bytes(content)
        yield f"gradients: {name} of a trillion bytes", lambda path=path: read_gradients(path)
        run = Path(shutil.copytree(whole, folder / f"tensors in a checkpoint {name}"))
        _forge(run / CHECKPOINT, "model.safetensors", content)
        case = f"resume: {name} of a trillion bytes"
        yield case, _resuming(settings, run)
    path = place / "bomb.npz"
    path.write_bytes(_npz((COUNT * 2**22,)))
    yield "gradients: .npz of zeros", lambda path=path: read_gradients(path)
    honest = place / "honest.npz"
    honest.write_bytes(_npz((23 * 2**22,), 23))
    yield "gradients: .npz of 368 MiB of zeros", lambda: read_gradients(honest).values.sum().item()
    lie = place / "lie.npz"
    lie.write_bytes(_npz((TRILLION // 4,)))
    yield "gradients: .npz of a trillion zeros", lambda: read_gradients(lie)
    long = place / "long.safetensors"
    write_gradients(long, torch.zeros(2, 4), (), {})
    os.truncate(long, TRILLION)
    yield "gradients: a file of a trillion bytes", lambda: read_gradients(long)


def _traces(place: Path) -> Iterator[tuple[str, Case]]:
    first, part = header("run", 0), blocks.stored(b"a" * 2**24)
    magic, size, checksum, num_stored, _ = blocks.FRAME.unpack(part[: blocks.FRAME.size])
    bombs = {
        "one block": blocks.FRAME.pack(magic, size, checksum, num_stored, 2**32 - 1)
        + part[blocks.FRAME.size :],
        "many blocks": part * COUNT,
        "no frames": _gzip(COUNT, b"a" * 2**24),
    }
    for name, bomb in bombs.items():
        run = place / name
        trace_file(run, 0).parent.mkdir(parents=True)
        trace_file(run, 0).write_bytes(first + bomb)
        yield f"trace: {name}, read", lambda run=run: list(read_traces(run, 1))
        yield f"trace: {name}, cut", lambda run=run: " | ".join(cut_traces(run, 4, "run"))


def _other_files(folder: Path) -> Iterator[tuple[str, Case]]:
    place = folder / "others"
    for name, part in (("lines.txt.gz", b"a line.\n" * 2**21), ("a.jsonl.gz", b"a" * 2**24)):
        path = place / name / name
        path.parent.mkdir(parents=True)
        path.write_bytes(_gzip(COUNT, part))
        yield f"corpus: {name}", lambda path=path: [len(text) for text in TextCorpus(path).load().train]

    def fill(target: Path) -> None:
        (target / "train.npy").write_bytes(b"tokens")

    for name in ("train.npy", "digests.json"):
        prepared = cached_folder(place / f"prepared {name}", fill)
        os.truncate(prepared / name, TRILLION)
        yield f"cache: {name}", lambda prepared=prepared: cached_folder(prepared, fill).name


def _deflated(count: int, part: bytes, first: bytes = b"") -> bytes:
    """A raw deflate stream of `first` and `count` times `part`, made in the time of one."""
    packer = zlib.compressobj(6, wbits=-15)
    start = packer.compress(first) + packer.flush(zlib.Z_FULL_FLUSH)
    middle = packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + middle * count + packer.flush()


def _gzip(count: int, part: bytes = bytes(2**24)) -> bytes:
    """A gzip file of `count` times `part`; its checksum is right for one."""
    trailer = struct.pack("<II", zlib.crc32(part), len(part))
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + _deflated(count, part) + trailer


def _npz(shape: tuple[int, ...], count: int = COUNT) -> bytes:
    """An archive with an array of float32 that is said to be of `shape`, and `count` parts of zeros."""
    described, file, part = io.BytesIO(), io.BytesIO(), bytes(2**24)
    np.lib.format.write_array_header_1_0(
        described, {"descr": "<f4", "fortran_order": False, "shape": (1, *shape)}
    )
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("gradients.npy", _deflated(count, part, described.getvalue()))
    checksum = reduce(
        lambda before, _: zlib.crc32(part, before), range(count), zlib.crc32(described.getvalue())
    )
    content = bytearray(file.getvalue())
    entry = content.rindex(b"PK\x01\x02")  # the list of members: packing, checksum, size packed and unpacked
    struct.pack_into("<H", content, entry + 10, zipfile.ZIP_DEFLATED)
    struct.pack_into("<I", content, entry + 16, checksum)
    struct.pack_into("<I", content, entry + 24, len(described.getvalue()) + count * 2**24)
    return bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
