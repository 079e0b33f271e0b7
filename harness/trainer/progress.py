"""What a user sees while a run trains: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.harness.runtime import progress
from gradwire.harness.timing.measure.metrics import in_words
from gradwire.harness.timing.measure.peak_rates import utilized_share


class Progress:
    """Rank 0's progress; silent on the others. `peak`: FLOP/s of all devices together, if it is known."""

    def __init__(self, title: str, steps: int, visible: bool, peak: float | None = None) -> None:
        self._title, self._steps, self._visible, self._peak = title, steps, visible, peak
        self._parameters = 0
        self._shown: progress.Progress | None = None

    def start(self, first: int, parameters: int) -> None:
        """Shows the bar, with `first` steps of a model with so many `parameters` done by earlier attempts."""
        self._parameters = parameters
        self._shown = progress.Progress(
            self._title, self._steps, "step", done=first, visible=self._visible, log=True, at_once=True
        )

    def step(self) -> None:
        self._running.advance()

    def show(self, row: dict[str, Any]) -> None:
        """Rows of `steps.jsonl`, every `train.log_every` steps; every rank may call it."""
        text = f"loss {row['loss']:.3f}{self._speed(row.get('tokens_per_s'))}"
        self._running.postfix(text)
        self._running.show_due(text)

    def _speed(self, tokens_per_s: float | None) -> str:
        """Tokens per second of the training clock, and their share of what the devices could do."""
        if tokens_per_s is None:
            return ""
        share = ""
        if self._peak is not None:
            share = f", MFU {utilized_share(self._parameters, tokens_per_s, self._peak):.1%}"
        return f", {tokens_per_s:,.0f} tokens/s{share}"

    def skipped(self, steps: Sequence[int]) -> None:
        """Reports which of the steps just recorded were skipped, from their rows, if any."""
        if steps:
            number = "" if len(steps) == 1 else f", the last of {len(steps)}"
            self._running.say(
                f"{self._title}: step {steps[-1] + 1}/{self._steps} skipped{number}, gradients not finite"
            )

    def evaluation(self, row: dict[str, Any], metric: str) -> None:
        """Rows of `evals.jsonl`; `metric` is the one to show."""
        value = f"{row[metric]:{'.2f' if metric == 'perplexity' else '.4f'}}"
        if self._running.has_bar:
            self._running.postfix(f"{in_words(metric)} {value}")
            return
        left = self._running.left() if row["step"] < self._steps else ""
        self._running.say(
            f"{self._title}: step {row['step']}/{self._steps}, {in_words(metric)} {value}, "
            f"{row['train_time_s']:.1f} s on the training clock{left and f', {left}'}"
        )

    def close(self) -> None:
        if self._shown is not None:
            self._shown.close()

    @property
    def _running(self) -> progress.Progress:
        assert self._shown is not None, "start() was not called"
        return self._shown
