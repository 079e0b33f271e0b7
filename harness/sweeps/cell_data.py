"""The text on which the cells of a sweep from `sweeps/` train (real text in a folder, else the embedded one),
and the files of the benchmarks that they are scored on.

A sweep at a small size would otherwise need the paper's data sets from the hub. Settings of `dataset` on the
command line take precedence. At size=paper a cell has the paper's own data unless `sweep.data` names another
copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from gradwire.harness.config.explain import plain
from gradwire.harness.config.typed import task_of
from gradwire.harness.data.formats import format_of
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.identity import data_fingerprint
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.cells import key_of, override_text

EMBEDDED, AUTO = "embedded", "auto"
PAPER = "paper"
GROUP = "dataset"
PLACES = "local_data.yaml"
BENCHMARKS = "score.data"


class CellData(NamedTuple):
    """The overrides of a cell with those that choose its data, and the name of its text in records, which has
    no folder of this machine."""

    overrides: Sequence[str]
    text: str | None = None


@cache
def places() -> Mapping[str, str]:
    """The subfolder of `sweep.data` for each data set."""
    found = read_yaml(conf_directory() / PLACES, remedy="install gradwire again")
    return {str(name): str(place) for name, place in found.items()}


def data_of(overrides: Sequence[str], config: DictConfig, given: Sequence[str], data: str | None) -> CellData:
    """The text of a cell that trains, the benchmarks' files of another: `config` is composed from its
    `overrides`, of which the command line has set the keys `given`.

    Raises ConfigError if `data` lacks the data set.
    """
    if task_of(config).trains:
        return _text_of(overrides, config, given, data)
    return CellData(benchmarks_of(overrides, config, given, data))


def _text_of(
    overrides: Sequence[str], config: DictConfig, given: Sequence[str], data: str | None
) -> CellData:
    if any(key.partition(".")[0] == GROUP and key.partition(".")[2] in ("", "path", "hub") for key in given):
        return CellData(overrides)
    name, size = str(plain(config, "dataset.name")), str(plain(config, "size.name"))
    if name == EMBEDDED or plain(config, "dataset.path") is not None or (data is None and size == PAPER):
        return CellData(overrides, EMBEDDED if name == EMBEDDED else None)
    if data is None:
        others = [text for text in overrides if key_of(text) != GROUP]
        return CellData([*others, f"{GROUP}={EMBEDDED}"], EMBEDDED)
    name = str(plain(config, "model.paper_dataset")) if name == AUTO else name
    path, place = _path(name, data), places()[name]
    chosen = [f"{GROUP}={name}"] if f"{GROUP}={name}" not in overrides else []
    return CellData(
        [*overrides, *chosen, f"{GROUP}.path={override_text(str(path))}"], f"{place} ({_digest(path)})"
    )


def benchmarks_of(
    overrides: Sequence[str], config: DictConfig, given: Sequence[str], data: str | None
) -> Sequence[str]:
    """A cell's overrides, with the benchmarks' files from `data` added if it scores and names no others."""
    asked = any(key in ("score", BENCHMARKS) for key in given)
    if data is None or asked or not isinstance(config.get("score"), DictConfig):
        return overrides
    if plain(config, BENCHMARKS) is not None:
        return overrides
    return [*overrides, f"{BENCHMARKS}={override_text(str(_folder(data).absolute()))}"]


def _folder(data: str) -> Path:
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"sweep.data={data}: no such folder; choose one with a sub-folder for each data set"
        )
    return folder


def _path(name: str, data: str) -> Path:
    folder = _folder(data)
    if name not in places():
        raise ConfigError(
            f"sweep.data={data}: conf/{PLACES} has no place for dataset={name}; add a line, or set dataset="
        )
    path = folder / places()[name]
    if not path.exists():
        raise ConfigError(
            f"sweep.data={data}: has no {places()[name]}, the text of dataset={name}; add it, or choose "
            "the text with dataset="
        )
    return path.absolute()


def _digest(path: Path) -> str:
    """The digest of a folder's text files, or of all its files if there is no text, e.g. for images."""
    images = path.is_dir() and not any(format_of(file) for file in path.rglob("*") if file.is_file())
    return f"sha256 {data_fingerprint(path, every_file=images)[:12]}"
