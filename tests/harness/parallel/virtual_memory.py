"""The cost of many virtual workers: CPU seconds per step, and memory. Not a test.

    python tests/harness/parallel/virtual_memory.py cluster.workers=64 codec=dynamiq network=simulated

runs `python run.py size=tiny <arguments>` for two numbers of steps; the difference is what a step costs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
STEPS = (2, 6)
FIXED = (
    "train.warmup_steps=1",
    "eval.every=1000",
    "eval.max_sequences=4",
    "train.save_checkpoint=false",
    "train.micro_batch=1",
)


def measure(arguments: list[str], steps: int) -> tuple[float, float, int]:
    """CPU seconds and GiB of memory at most of a run, and its coordinates."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "run.py"), "size=tiny", *FIXED, *arguments]
        command += [f"train.steps={steps}", f"hydra.run.dir={folder}/run"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = _wait(process)
        assert status == 0, f"{command} ended with {status}"
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, summary["num_coordinates"]


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int, resource.struct_rusage]:
    return os.wait4(process.pid, 0)


def main() -> None:
    found = {steps: measure(sys.argv[1:], steps) for steps in STEPS}
    (few, (before, _, coordinates)), (many, (after, memory, _)) = found.items()
    print(f"{' '.join(sys.argv[1:])}: {coordinates:,} coordinates")
    print(f"{(after - before) / (many - few):.2f} CPU-s a step, {memory:.2f} GiB at most")


if __name__ == "__main__":
    main()
