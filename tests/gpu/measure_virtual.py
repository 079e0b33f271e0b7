"""Times steps of a virtual cluster on a GPU; one JSON line for each value of `kernels.graphs`.

    python tests/gpu/measure_virtual.py [--graphs auto never] [overrides of the configuration ...]

`wall_s` is the median of a step's wall time over the steps that launch captured rounds, `computation_s` that
of the ranks' computation, summed over ranks. `ratio` is wall time over computation: 1 would be a step in
which nothing else takes time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.launch import run_here
from gradwire.harness.parallel.base import BaseParallelism
from gradwire.harness.parallel.interface import StepOutcome
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.timing.trace.step import Compute

STEPS, FIRST = 20, 5
RUN = (
    "size=gpu",
    "cluster=virtual",
    "cluster.device=cuda",
    "cluster.workers=4",
    "codec=dynamiq",
    f"train.steps={STEPS}",
    "train.warmup_steps=5",
    "train.log_every=1",
    "eval.every=1000",
    "measure.vnmse_every=0",
    "train.save_checkpoint=false",
)


@contextmanager
def walls_of_steps() -> Iterator[list[float]]:
    """Gives the seconds of each step of the runs in this block, until its loss has been read."""
    walls, step = list[float](), BaseParallelism.step

    def timed(self: BaseParallelism, *given: Any) -> StepOutcome:
        begun = time.perf_counter()
        outcome = step(self, *given)
        walls.append(time.perf_counter() - begun)
        return outcome

    with mock.patch.object(BaseParallelism, "step", timed):
        yield walls


def measure(graphs: str, overrides: Sequence[str], directory: Path) -> dict[str, str | float]:
    """The times of one run's steps."""
    chosen = {each.partition("=")[0]: each for each in (*RUN, *overrides, f"kernels.graphs={graphs}")}
    with walls_of_steps() as walls:
        run_here(validate(compose(list(chosen.values()))), directory)
    computed = [
        sum(
            one.end - one.start
            for own in trace.values()
            for one in own.computation
            if isinstance(one, Compute)
        )
        for number, trace in timed_steps(directory)
        if number >= FIRST
    ]
    wall, computation = median(walls[FIRST:]), median(computed)
    return {
        "graphs": graphs,
        "wall_s": round(wall, 5),
        "computation_s": round(computation, 5),
        "ratio": round(wall / computation, 3),
    }


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["auto", "never"])
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    for graphs in given.graphs:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(graphs, given.overrides, Path(folder) / "run")), flush=True)


if __name__ == "__main__":
    main()
