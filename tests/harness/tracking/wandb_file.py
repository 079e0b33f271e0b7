"""Reads what wandb wrote for one run, independently of how it was written.

A `.wandb` file is a seven-byte header and a LevelDB log: blocks of 32 KiB with records cut into parts, each
with its checksum, length and kind; a record is a protobuf.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, PIECE = 32 * 1024, 7, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


@dataclass
class WandbRun:
    """One run as its file describes it."""

    folder: Path
    run: Any = None
    exit_codes: list[int] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    axes: dict[str, str] = field(default_factory=dict)
    """The x axis of the metrics that a pattern fits."""
    charts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The description of a chart of a table, by its key in the history."""

    @property
    def config(self) -> dict[str, Any]:
        return {item.key: json.loads(item.value_json) for item in self.run.config.update}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows logged as `<name>/<key>`, without the prefix."""
        own = [{key: row[key] for key in row if key.startswith(f"{name}/")} for row in self.history]
        return [{key.removeprefix(f"{name}/"): row[key] for key in row} for row in own if row]

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every table in the history, read from the file it refers to."""
        return {name: json.loads(path.read_text()) for name, path in self._files("tables/", "table-file")}

    def curves(self) -> dict[str, list[list[Any]]]:
        """Every chart's points: x, the line's name, y."""
        found = self._files("curves/", "table-file")
        return {name.removesuffix("_table"): json.loads(path.read_text())["data"] for name, path in found}

    def plots(self) -> dict[str, bytes]:
        """Every picture in the history."""
        return {name: path.read_bytes() for name, path in self._files("plots/", "image-file")}

    def _files(self, prefix: str, kind: str) -> Iterator[tuple[str, Path]]:
        """The files that the keys with this prefix refer to."""
        for key, value in ((key, row[key]) for row in self.history for key in row if key.startswith(prefix)):
            assert value["_type"] == kind, key
            yield key.removeprefix(prefix), self.folder / "files" / value["path"]


def wandb_folders(directory: Path) -> list[Path]:
    """The folders of all wandb runs of a run directory, oldest first."""
    return sorted((directory / "wandb").glob("*run-*"), key=lambda path: path.stat().st_mtime_ns)


def read_wandb(folder: Path) -> WandbRun:
    """The run in a folder that wandb has made."""
    (path,) = folder.glob("run-*.wandb")
    found = WandbRun(folder)
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        found.kinds.add(kind)
        if kind == "run":
            found.run = record.run
        elif kind == "exit":
            found.exit_codes.append(record.exit.exit_code)
        elif kind == "history":
            found.history.append({})
            _put(found.history[-1], record.history.item)
        elif kind == "metric":
            found.axes[record.metric.glob_name] = record.metric.step_metric
        elif kind == "config":
            for item in record.config.update:
                *_, folder, key = [*item.nested_key] or [item.key, ""]
                if folder == "visualize":
                    found.charts[key] = json.loads(item.value_json)
        elif kind == "summary":
            _put(found.summary, record.summary.update)
    return found


def _put(values: dict[str, Any], items: Iterable[Any]) -> None:
    """Set what the items say, at the end of their path of keys."""
    for item in items:
        *path, last = item.nested_key or [item.key]
        target = values
        for key in path:
            target = target.setdefault(key, {})
        target[last] = json.loads(item.value_json)


def _records(data: bytes) -> Iterator[Any]:
    assert data[:4] == b":W&B"
    position, pieces = HEADER, b""
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < PIECE.size:
            position += left
            continue
        _, length, kind = PIECE.unpack_from(data, position)
        pieces += data[position + PIECE.size : position + PIECE.size + length]
        position += PIECE.size + length
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record
