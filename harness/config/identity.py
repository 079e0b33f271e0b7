"""What makes two runs the same run: an id from the settings that change a result, names, directories."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from gradwire.harness.data.formats import format_of

WITHOUT_EFFECT = (
    "tracking",
    "size",
    "resume",
    "cluster.timeout_s",
    "train.log_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
)
"""Groups and keys that change no result: every value a size sets is in the id by itself."""

WHOLE_FILE_BYTES = 64 * 2**20
"""Files of at least this size count by name and size, smaller ones by their bytes too."""


def run_id(config: DictConfig) -> str:
    """12 hexadecimal digits that differ when a setting that changes the result does.

    `config` is validated. Where the data and the weights lie does not matter, what they are does.
    """
    settings = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    for key in WITHOUT_EFFECT:
        group, _, field = key.partition(".")
        if field:
            settings[group].pop(field)
        else:
            settings.pop(group)
    if settings["dataset"]["path"] is not None:
        settings["dataset"]["path"] = data_fingerprint(Path(settings["dataset"]["path"]))
    if settings["model"]["path"] is not None:
        settings["model"]["path"] = data_fingerprint(Path(settings["model"]["path"]), every_file=True)
    tokenizer = settings["model"]["tokenizer"]
    if tokenizer is not None and Path(tokenizer).expanduser().is_dir():
        settings["model"]["tokenizer"] = data_fingerprint(Path(tokenizer), every_file=True)
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_name(config: DictConfig) -> str:
    """`<model>-<codec>[-<bits>]-<topology>-s<seed>-<id>`, a directory name a reader can tell apart."""
    bits = config.codec.get("bits")
    codec = config.codec.name if bits is None else f"{config.codec.name}-{bits:g}"
    return f"{config.model.name}-{codec}-{config.topology.name}-s{config.seed}-{run_id(config)}"


def run_directory(config: DictConfig, override: str | Path | None = None) -> Path:
    """Where a run's files go: `override`, else `outputs/<run name>` below the working directory."""
    return Path(override) if override is not None else Path("outputs") / run_name(config)


def data_fingerprint(path: Path, *, every_file: bool = False) -> str:
    """Hash of a file, or of a folder's files of known formats or all: relative names, sizes, bytes."""
    path = path.expanduser()
    found = sorted(file for file in path.rglob("*") if file.is_file())
    files = [path] if path.is_file() else [file for file in found if every_file or format_of(file)]
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        name = file.name if file == path else file.relative_to(path).as_posix()
        digest.update(f"{name}\n{status.st_size}\n".encode())
        if status.st_size < WHOLE_FILE_BYTES:
            digest.update(_file_digest(file.resolve(), (status.st_size, status.st_mtime_ns)))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_digest(file: Path, version: tuple[int, int]) -> bytes:
    """sha256 of a file's bytes, read once per `version` (size and time of change) in a sweep."""
    assert version[0] < WHOLE_FILE_BYTES
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()
