"""The origin of a number: sources, versions, machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import gradwire
from gradwire.codecs.plugins import ENTRY_POINTS, plugins_of, version

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "hydra-core",
    "numpy",
    "safetensors",
)
SOURCES = {
    "codecs": (".py",),
    "harness": (".py",),
    "csrc": (".h", ".cpp", ".cu", "CMakeLists.txt"),
}
"""Folders of the sources, and suffixes of the files there that results can depend on. An installed wheel
lacks `csrc`."""


@lru_cache(maxsize=1)
def code_hash() -> str:
    """12 hexadecimal digits over the sources, Python's and the kernels': names and contents."""
    return hash_of_sources(_root())


def code_unchanged() -> bool:
    """True if the sources are still those that `code_hash` has read; new processes would read changed
    ones.
    """
    return hash_of_sources(_root()) == code_hash()


def hash_of_sources(root: Path) -> str:
    """`code_hash` of the folders `SOURCES` below `root`."""
    digest = hashlib.sha256()
    for folder, endings in SOURCES.items():
        for path in sorted((root / folder).rglob("*")):
            if path.name.endswith(endings):
                digest.update(path.relative_to(root / folder).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _root() -> Path:
    """The folder with `codecs`, `harness` and, in a checkout, `csrc`; an editable install links to it."""
    return (Path(gradwire.__file__).parent / "harness").resolve().parent


@lru_cache(maxsize=1)
def git_state() -> tuple[str | None, bool | None]:
    """(commit, whether tracked files differ from it); (None, None) outside a repository."""
    root = _root()
    # A wheel's environment may lie inside an unrelated repository.
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit is None:
        return None, None
    return commit, bool(
        _git(root, "status", "--porcelain", "--", *SOURCES, "CMakeLists.txt", "conf", "sweeps")
    )


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Package name to version, and Python's."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """A description of the machine, without host names or user names."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": gpus,
        "intra_op_threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def plugin_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """The plug-ins that a configuration uses, with the versions and digests of their sources."""
    chosen = {kind: (config.get(kind) or {}).get("name") for kind in ENTRY_POINTS}
    return {name: version(kind, name) for kind, name in plugins_of(chosen).items()}


def provenance(config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The origin of a summary: code_hash, commit, dirty, versions, machine.

    `versions` also has the plug-ins that `config` uses.
    """
    commit, dirty = git_state()
    return {
        "code_hash": code_hash(),
        "commit": commit,
        "dirty": dirty,
        "versions": versions() | plugin_versions(config or {}),
        "machine": machine(),
    }
