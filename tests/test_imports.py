"""What importing the library costs, and how its files import each other."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("transformers", "datasets", "accelerate", "hydra", "wandb", "lm_eval", "matplotlib", "pandas")


@cache
def sources() -> dict[str, str]:
    """Relative path to text of every Python file that git tracks, or would."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    assert "run.py" in paths
    return {name: (ROOT / name).read_text() for name in paths}


def test_the_library_does_not_load_the_harness_dependencies(tmp_path: Path) -> None:
    code = (
        f"import sys, gradwire; print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "import gradwire.harness.tasks.score; print('lm_eval' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\nFalse\n", "lm-eval is loaded where a checkpoint is scored, not before"


def test_the_library_needs_torch_and_numpy_alone() -> None:
    command = [sys.executable, str(ROOT / "tests" / "light_core.py"), "--block"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "gradwire.harness.trainer.parts needs " in ran.stdout


def test_nothing_is_imported_by_its_bare_name() -> None:
    """`codecs` is a module of Python's own, and the repository root is on nobody's path."""
    bare = re.compile(r"^\s*(?:from|import)\s+(?:codecs|harness)\b", re.M)
    assert not [name for name, text in sources().items() if bare.search(text)]


def test_codecs_know_neither_processes_nor_the_harness() -> None:
    known = re.compile(r"torch\.distributed|gradwire\.harness|\bhydra\b|omegaconf")
    offending = [
        name for name, text in sources().items() if name.startswith("codecs/") and known.search(text)
    ]
    assert not offending


def test_no_file_is_long() -> None:
    lengths = {name: text.count("\n") for name, text in sources().items()}
    assert not {name: length for name, length in lengths.items() if length > 500}
