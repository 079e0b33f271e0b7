"""Where a run's directory keeps what is saved of chosen steps: gradients, weights, entropies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

GRADIENTS, WEIGHTS = "gradients", "weights"
"""The folders of the steps' files."""

STEP_FILE = re.compile(r"step(\d+)\.safetensors")

ENTROPIES = "entropies.jsonl"


def saved_path(directory: Path, step: int, what: str = GRADIENTS) -> Path:
    """The file of the gradients, or of the weights, of `step`."""
    return directory / what / f"step{step}.safetensors"


def step_files(folder: str | Path) -> dict[int, Path]:
    """The saved steps of a run directory, or of a folder of such files, by step; none if there are none."""
    place = Path(folder).expanduser()
    place = place / GRADIENTS if (place / GRADIENTS).is_dir() else place
    found = ((STEP_FILE.fullmatch(path.name), path) for path in place.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def check_saved_steps(key: str, steps: Sequence[int], num_steps: int) -> None:
    """ValueError unless all `steps` of `measure.<key>` belong to a run of `num_steps`."""
    beyond = [step for step in steps if not 0 <= step < num_steps]
    if beyond:
        raise ValueError(
            f"measure.{key}={list(steps)}: the run has the steps 0 to {num_steps - 1}, "
            f"and not {', '.join(map(str, beyond))}"
        )
