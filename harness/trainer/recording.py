"""The record of a training run, written as it grows: steps, evaluations, decisions, summary, and rank 0's
progress."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from gradwire.codecs.decision_file import SETTINGS, STEP, STEPS
from gradwire.harness.comm.mesh import Mesh
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.parallel.interface import StepOutcome
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.identity import decided_about
from gradwire.harness.record.profiles import Profile
from gradwire.harness.runtime import progress
from gradwire.harness.runtime.heartbeat import COMPLETE, ENDING, beat
from gradwire.harness.timing.measure.metrics import in_words
from gradwire.harness.timing.measure.peak_rates import peak_flops, utilized_share
from gradwire.harness.timing.measure.training_metrics import ACTIVITY_PREFIX
from gradwire.harness.timing.trace.step import COUNTED_PHASES, PHASES
from gradwire.harness.timing.trace.writer import TraceWriter
from gradwire.harness.trainer.calibration import profile_in_summary
from gradwire.harness.trainer.checkpoints import bytes_by_phase
from gradwire.harness.trainer.measured_steps import MeasuredSteps
from gradwire.harness.trainer.state import TrainingState
from gradwire.harness.trainer.steplog import StepLog
from gradwire.harness.trainer.summarize import RunTotals, summarize


class Recording:
    """Measures the steps of run `run` (its id), and writes their rows and everything derived from them.

    All processes must call its methods; rank 0 has the writer.
    """

    log: StepLog
    """The steps whose rows are not written yet; exists after `start`."""

    def __init__(self, state: TrainingState, measured: MeasuredSteps, run: str) -> None:
        self._state, self.measured, self._run = state, measured, run
        steps, shown = state.schedule.steps, state.writer is not None
        self._progress = TrainingProgress(state.directory.name, steps, shown, _peak(state))
        self._gradients_sent = _gradients_sent(state)
        self._decisions = list[dict[str, Any]]()
        self._profile: Profile | None = None

    def start(self, first: int, profile: Profile | None) -> None:
        """Begins with step `first`, after the warm-up; `profile` is the one that the simulated clock uses."""
        state, measure = self._state, self._state.config.measure
        traces = None
        if measure.trace and measure.spans:
            every, most_bytes = measure.trace_every, 1e6 * measure.trace_mb
            traces = TraceWriter(state.directory, run=self._run, every=every, most_bytes=most_bytes)
        self._profile, self.log = profile, StepLog(state, self._gradients_sent, traces)
        self._progress.start(first, state.layouts.coordinates)

    def add(self, step: int, outcome: StepOutcome, rate: float, before: torch.Tensor | None) -> None:
        """Ends step `step`, begun with `log.begin`, and takes its measurements; `before` holds the weights
        before it, if they are saved."""
        if outcome.decision:
            self._decisions.append({STEP: step + 1, **outcome.decision})
        shared: dict[str, Any] = {
            "step": step,
            "lr": rate,
            "grad_norm": outcome.grad_norm,
            "skipped": outcome.skipped,
            "measured": self.measured.due(step),
            **{_key(name): value for name, value in outcome.logged.items()},
        }
        pending = self.log.end(outcome, shared)
        shared |= self.measured.after_step(step, before)
        self.log.add(pending)
        self._progress.step()

    def flush(self) -> None:
        """Writes the rows of the steps so far."""
        state, rows = self._state, self.log.flush()
        if rows:
            self._progress.show(rows[-1])
            self._progress.skipped([row["step"] for row in rows if row["skipped"]])
        if state.writer is not None:
            state.writer.add_steps(rows)
            state.writer.add_decisions(self._about_decisions, self._decisions)
        self.measured.write_entropies()
        self._decisions = []

    def _about_decisions(self) -> dict[str, Any]:
        """The first line of `decisions.jsonl`, which identifies the run."""
        return {STEPS: self._state.schedule.steps, SETTINGS: decided_about(self._state.config.mapping())}

    def evaluate(self, done: int) -> dict[str, Any]:
        """Evaluates the model after `done` steps; returns the row of `evals.jsonl`."""
        state, objective = self._state, self._state.parts.objective
        metrics = state.parallelism.evaluate(objective, state.config.eval.micro_batch)
        clocks = state.world.gather({rank: [state.clock.seconds] for rank in state.world.ranks})
        train_time_s = max(clock for (clock,) in clocks)
        row = {"step": done, "train_time_s": train_time_s, "wall_time_s": state.wall_time_s, **metrics}
        self._progress.evaluation(row, objective.metric)
        if state.writer is not None:
            state.writer.add_evaluation(row)
        return row

    def close(self) -> None:
        """Ends progress and observations."""
        self._progress.close()
        self.log.close()

    def finish(self) -> None:
        """Gathers the byte counters; then rank 0 alone writes weights and summary, however long it takes.

        DONE is written last.
        """
        state, writer = self._state, self._state.writer
        beat(ENDING, state.schedule.steps)
        sent = bytes_by_phase(state.world)
        model = state.parallelism.whole_model() if state.config.train.save_checkpoint else None
        if writer is None:
            return
        if model is not None:
            writer.save_weights(model, state.parts.data.tokenizer)
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", state.world.size))  # torchrun or the launcher
        captured = state.world.captured_buckets()
        totals = RunTotals(
            metric=state.parts.objective.metric,
            clock=state.clock.kind,
            wall_time_s=state.wall_time_s,
            bytes_by_rank=[sum(counts.values()) for counts in sent],
            bytes_by_phase={
                phase: sum(counts[phase] for counts in sent)
                for phase in COUNTED_PHASES
                if phase in PHASES or any(counts[phase] for counts in sent)
            },
            num_coordinates=state.layouts.coordinates,
            gradients_sent=self._gradients_sent,
            layout_hash=state.layouts.hash,
            data=state.parts.data.description,
            attempts=Attempts.read(state.directory),
            profile=profile_in_summary(state.world, self._profile),
            captured=None if captured is None else asdict(captured),
            workers_per_machine=None if self.log.watch is None else ranks_here,
        )
        settings = state.config.mapping()
        summary = summarize(settings, self._run, writer.steps(), writer.evaluations(), totals)
        beat()
        writer.finish(summary)
        beat(COMPLETE)


def _peak(state: TrainingState) -> float | None:
    """The combined peak FLOP/s of all ranks, each counted with a device of its own, as on the training clock;
    None if unknown."""
    config, device = state.config, state.world.device
    if device.type != "cuda":
        return None
    low = config.train.precision != "fp32" or getattr(config.parallel, "model_dtype", "") == "bfloat16"
    found = peak_flops(torch.cuda.get_device_name(device), "bf16" if low else "fp32")
    return None if found is None else state.world.size * found


def _gradients_sent(state: TrainingState) -> float:
    """The number of encoded gradients sent when a parameter is synchronized among its replicas."""
    config, replicas, size = state.config, state.parallelism.replicas, state.world.size
    mesh = Mesh(size, num_nodes(config.cluster, config.network), size // replicas)
    nodes = mesh.nodes_of(mesh.group("replica", 0))
    return make_schedule(config.topology.name, replicas, nodes).gradients_sent


class TrainingProgress:
    """A progress bar on a terminal, otherwise a line now and then; silent on ranks other than 0. `peak` is
    the FLOP/s of all devices together, if known."""

    def __init__(self, title: str, steps: int, visible: bool, peak: float | None = None) -> None:
        self._title, self._steps, self._visible, self._peak = title, steps, visible, peak
        self._parameters = 0
        self._shown: progress.Progress | None = None

    def start(self, first: int, parameters: int) -> None:
        """Shows the bar for a model with this number of `parameters`; `first` steps were done by earlier
        attempts."""
        self._parameters = parameters
        self._shown = progress.Progress(
            self._title, self._steps, "step", done=first, visible=self._visible, log=True
        )

    def step(self) -> None:
        self._running.advance()

    def show(self, row: dict[str, Any]) -> None:
        """Shows a row of `steps.jsonl`, every `train.log_every` steps; every rank may call it."""
        text = f"loss {row['loss']:.3f}{self._speed(row.get('tokens_per_s'))}"
        self._running.postfix(text)
        self._running.show_due(text)

    def _speed(self, tokens_per_s: float | None) -> str:
        """Tokens per second of the training clock, and the share of the devices' FLOP/s that they use."""
        if tokens_per_s is None:
            return ""
        share = ""
        if self._peak is not None:
            share = f", MFU {utilized_share(self._parameters, tokens_per_s, self._peak):.1%}"
        return f", {tokens_per_s:,.0f} tokens/s{share}"

    def skipped(self, steps: Sequence[int]) -> None:
        """Reports which of the steps just recorded were skipped, if any."""
        if steps:
            number = "" if len(steps) == 1 else f", the last of {len(steps)}"
            self._running.say(
                f"{self._title}: step {steps[-1] + 1}/{self._steps} skipped{number}, gradients not finite"
            )

    def evaluation(self, row: dict[str, Any], metric: str) -> None:
        """Shows a row of `evals.jsonl`; `metric` is the figure to show."""
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


def _key(name: str) -> str:
    """The key in rows of what a codec logs: its activity is a metric, all else its own."""
    return name if name.startswith(ACTIVITY_PREFIX) else f"codec/{name}"
