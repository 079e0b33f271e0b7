"""The cost of importing the library, and the imports between its files."""

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
        "import gradwire.harness.studies.score.task; print('lm_eval' in sys.modules)"
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


ANSWERS = (
    *(("--help",), ("--help", "codec=dynamiq"), ("--help", "all"), ("task=train", "--help"), ("--version",)),
    *(("train.step=5",), ("train.steps=-1",), ("codec.bits=abc",), ("codec.bits=99",), ("size=tiny", "tiny")),
    *(("codec=dynamic",), ("topology=tree",), ("size=huge",), ("cluster.workers=0",), ("sweep=demo",)),
    *(("sweeps=demos",), ("task=replay",), ("--resume",), ("size=tiny", "model.num_heads=3")),
    *(("train.steps=null", "train.epochs=null"), ("size=tiny", "codec=thc", "--cfg", "job")),
)
SLOW = (*HEAVY, "torch", "numpy", "scipy", "tokenizers", "huggingface_hub", "pyarrow", "requests", "psutil")


def test_help_and_refusals_import_nothing_heavy(tmp_path: Path) -> None:
    """All run in one process, in which imports stay: the first answer that needs one shows it."""
    code = (
        "import contextlib, io, sys\n"
        "from gradwire.harness.tasks.front import start\n"
        "for answer in ANSWERS:\n"
        "    sys.argv[1:], said = answer, io.StringIO()\n"
        "    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):\n"
        "        try: start()\n"
        "        except SystemExit: pass\n"
        "    text, loaded = said.getvalue(), [name for name in SLOW if name in sys.modules]\n"
        "    page = any(word in answer for word in ('--help', '--version', '--cfg'))\n"
        "    assert text.startswith('error: ') != page, (answer, text)\n"
        "    assert not loaded, (answer, loaded)\n"
        "print(len(ANSWERS))"
    )
    slow = [name for name in SLOW if name != "hydra"]
    code = f"ANSWERS, SLOW = {ANSWERS!r}, {slow!r}\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"{len(ANSWERS)}\n", "", 0)


def test_the_library_imports_torch_when_it_is_used() -> None:
    code = (
        "import sys, gradwire\n"
        "print('torch' in sys.modules, callable(gradwire.attach), 'torch' in sys.modules)\n"
        "print('torch._dynamo' in sys.modules)\n"
        "print([each for each in gradwire.__all__ if not hasattr(gradwire, each)], hasattr(gradwire, 'x'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False True True\nFalse\n[] False\n"


def test_options_of_codecs_import_no_more_than_fields() -> None:
    code = (
        "import sys\n"
        "from gradwire.codecs.registry import codec_names, codec_options\n"
        "print(len([codec_options(name) for name in codec_names()]) > 20, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True False\n", "options import nothing of their codecs"
    for name, text in sources().items():
        if name.startswith("codecs/options/"):
            found = set(re.findall(r"^\s*(?:from|import)\s+([\w.]+)", text, re.M))
            assert found <= {
                *("__future__", "collections.abc", "dataclasses", "typing", "gradwire.codecs.fields"),
                "gradwire.codecs.options.common",
            }, name


def test_nothing_is_imported_by_its_bare_name() -> None:
    """`codecs` is a module of Python's own, and the repository root is not on the path."""
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
