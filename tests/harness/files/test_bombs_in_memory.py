"""Files that promise or expand to gigabytes: refused or repaired in one line, in 500 MB and 5 s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from damages import one_line

import gradwire

PROGRAM = Path(__file__).resolve().parents[2] / "bombs.py"
MOST_S = 5.0


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float]]:
    """Each attempt, with the error and the processor seconds it took."""
    if sys.platform != "linux":
        pytest.skip("the memory of a process can be bounded with RLIMIT_DATA on Linux alone")
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("bombs"))]
    env = os.environ | {"PYTHONPATH": str(Path(gradwire.__file__).parents[1])}  # the sources tested here
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, tuple[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_of_them_end_in_a_line(tried: dict[str, tuple[str, float]]) -> None:
    """A refused allocation would have ended the program, or be reported."""
    assert "resuming after step 4" in tried["a whole run"][0]
    assert len(tried) > 90
    for name, (said, seconds) in tried.items():
        one_line(said)
        assert "Memory" not in said, (name, said)
        assert seconds < MOST_S, (name, seconds)


PART = "resume: checkpoints/step-00000004"
EXPECTED = {
    "load: config.yaml, a trillion bytes": "config.yaml: is longer than 256 KiB",
    "load: steps.jsonl, a trillion bytes": "steps.jsonl is longer than 2 GiB",
    "load: steps.jsonl of a finished run, a trillion bytes": "steps.jsonl: is longer than 2 GiB",
    "resume: steps.jsonl, a trillion bytes": "steps.jsonl: holds other rows than were written",
    "resume: steps.jsonl, brackets": "steps.jsonl: holds other rows than were written",
    f"{PART}/model.safetensors, a trillion bytes": "invalid JSON in header",
    "gradients: a header of a trillion bytes": "header too large",
    "gradients: a tensor of a trillion bytes": "file not fully covered",
    "resume: a header of a trillion bytes": "model.safetensors is not a whole safetensors file",
    "resume: a tensor of a trillion bytes": "model.safetensors is not a whole safetensors file",
    "gradients: .npz of zeros": "expands to 1.88 GiB, more than 384 MiB",
    "gradients: .npz of 368 MiB of zeros": "0.0",
    "gradients: .npz of a trillion zeros": "is described as 931 GiB, 1.88 GiB are there",
    "trace: one block, read": "a block holds more than",
    "trace: many blocks, cut": "is damaged at its beginning",
    "trace: one block, cut": "the run continues",
    "corpus: lines.txt.gz": "expands to more than 16 MiB",
    "corpus: a.jsonl.gz": "expands to more than 16 MiB",
    "cache: train.npy": "prepared train.npy",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_said(name: str, tried: dict[str, tuple[str, float]]) -> None:
    assert EXPECTED[name] in tried[name][0]
