"""What a user sees while a run trains: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from gradwire.harness.timing.measure.metrics import in_words


class Progress:
    """Rank 0's progress; silent on the others."""

    def __init__(self, title: str, steps: int, visible: bool) -> None:
        self._title, self._steps, self._visible = title, steps, visible
        self._bar: tqdm[Any] | None = None

    def start(self, first: int) -> None:
        """Show the bar, with `first` steps done by earlier attempts."""
        if self._visible and sys.stderr.isatty():
            self._bar = tqdm(
                total=self._steps, initial=first, desc=self._title, unit="step", dynamic_ncols=True
            )

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def show(self, row: dict[str, Any]) -> None:
        """Rows of `steps.jsonl`, every `train.log_every` steps; every rank may call it."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{row['loss']:.3f}", refresh=False)

    def skipped(self, steps: Sequence[int]) -> None:
        """Reports which of the steps just recorded were skipped, from their rows, if any."""
        if self._visible and steps:
            number = "" if len(steps) == 1 else f", the last of {len(steps)}"
            line = f"{self._title}: step {steps[-1] + 1}/{self._steps} skipped{number}, gradients not finite"
            tqdm.write(line, file=sys.stderr) if self._bar is not None else print(line, flush=True)

    def evaluation(self, row: dict[str, Any], metric: str) -> None:
        """Rows of `evals.jsonl`; `metric` is the one to show."""
        if not self._visible:
            return
        value = f"{row[metric]:{'.2f' if metric == 'perplexity' else '.4f'}}"
        line = (
            f"{self._title}: step {row['step']}/{self._steps}, {in_words(metric)} {value}, "
            f"{row['train_time_s']:.1f} s on the training clock"
        )
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.set_postfix({in_words(metric): value})

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
