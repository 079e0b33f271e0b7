"""The training loop. It owns steps, data, evaluation, the clock and the record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradwire.codecs.decision_file import SETTINGS, STEP, STEPS
from gradwire.harness.checkpoint.folder import CheckpointReader
from gradwire.harness.comm.mesh import Mesh
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.network.shaped.rate_changes import ClockListener, ignore_clock
from gradwire.harness.parallel.interface import StepOutcome
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.identity import decided_about
from gradwire.harness.record.saved_steps import check_saved_steps
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.runtime.heartbeat import COMPLETE, ENDING, beat
from gradwire.harness.timing.measure.clock import TrainingClock
from gradwire.harness.timing.measure.machine import StepWatch, own_watch
from gradwire.harness.timing.measure.peak_rates import peak_flops
from gradwire.harness.timing.trace.step import COUNTED_PHASES, PHASES
from gradwire.harness.timing.trace.writer import TraceWriter
from gradwire.harness.trainer.batches import StepBatches
from gradwire.harness.trainer.calibration import said_of_profile, settle_profile
from gradwire.harness.trainer.checkpoints import Checkpointer, bytes_by_phase
from gradwire.harness.trainer.early_end import Divergence, StopBarrier, skipped_at_the_end
from gradwire.harness.trainer.entropies import EntropyRecorder
from gradwire.harness.trainer.layouts import agreed_layouts
from gradwire.harness.trainer.parts import Parts
from gradwire.harness.trainer.progress import Progress
from gradwire.harness.trainer.saved_gradients import (
    about_run,
    save_gradients,
    save_weights,
    weights_before,
)
from gradwire.harness.trainer.schedule import learning_rate, num_steps
from gradwire.harness.trainer.settings import RunConfig
from gradwire.harness.trainer.steplog import PendingStep, StepLog
from gradwire.harness.trainer.summarize import summarize

STOP_S = 5.0
"""Most seconds (or one step) until a request to stop is noticed: ranks then agree at a barrier."""


class Trainer:
    """Trains one run to its end, or to a request to stop.

    `writes` is set on rank 0, which keeps the record in `directory`. `started` is when the attempt began, by
    perf_counter. `stop` says whether this process has been asked to save and end. `tell` is told of the
    training clock.
    """

    def __init__(
        self,
        config: RunConfig,
        parts: Parts,
        directory: Path,
        *,
        writes: bool = False,
        started: float | None = None,
        stop: Callable[[], bool] = lambda: False,
        tell: ClockListener = ignore_clock,
    ) -> None:
        self._config, self._directory, self._stop = config, directory, stop
        self._started = time.perf_counter() if started is None else started
        self._writer = RunWriter(directory) if writes else None
        self._parts = parts
        self._world, self._parallelism, self._data = parts.world, parts.parallelism, parts.data
        train = self._train = config.train
        self._eval = config.eval
        self._vnmse_every, self._seed = config.measure.vnmse_every, config.seed
        self._save_at = config.measure.save_gradients_at
        self._save_weights_at = config.measure.save_weights_at
        every, rates = config.measure.entropy_every, config.measure.entropy_rates
        self._entropies = EntropyRecorder(parts.world, parts.parallelism, config.parallel.name, every, rates)
        self._objective = parts.objective
        self._batches = StepBatches(parts.objective, parts.parallelism, parts.world, train, config.seed)
        per_step = parts.parallelism.replicas * train.micro_batch * (train.accumulation or 1)
        sequences = len(self._data.train)
        self.steps = num_steps(train.steps, train.epochs, sequences, per_step)
        check_saved_steps("save_gradients_at", self._save_at, self.steps)
        check_saved_steps("save_weights_at", self._save_weights_at, self.steps)
        per_row = parts.objective.tokens_per_row
        self._tokens = None if per_row is None else per_row * per_step
        self._schedule_steps = self.steps
        if train.schedule_steps is not None or train.schedule_epochs is not None:
            self._schedule_steps = num_steps(train.schedule_steps, train.schedule_epochs, sequences, per_step)
        self._decay_steps = 1
        if train.schedule == "steps":
            self._decay_steps = num_steps(train.decay_steps, train.decay_epochs, sequences, per_step)
        self._gradients_sent = self._sent_by_schedule()
        simulated = config.cluster.name == "virtual"
        self._clock = TrainingClock("simulated" if simulated else "wall", self._world.device, tell)
        self._progress = Progress(directory.name, self.steps, writes, self._peak(config))
        self._barrier = StopBarrier(train.log_every, STOP_S)
        self._divergence = Divergence(train.max_skipped)
        self._decisions = list[dict[str, Any]]()
        self._watch: StepWatch | None = None
        self._checkpoints = Checkpointer(config, directory, parts, self._clock, self._writer)

    def _peak(self, config: RunConfig) -> float | None:
        """FLOP/s of the devices of all ranks, as if each had one, as it does on the training clock; None
        where nobody knows."""
        if self._world.device.type != "cuda":
            return None
        low = config.train.precision != "fp32" or getattr(config.parallel, "model_dtype", "") == "bfloat16"
        found = peak_flops(torch.cuda.get_device_name(self._world.device), "bf16" if low else "fp32")
        return None if found is None else self._world.size * found

    def _sent_by_schedule(self) -> float:
        """How many encoded gradients a synchronization among the replicas of a parameter sends."""
        replicas = self._parallelism.replicas
        nodes = num_nodes(self._config.cluster, self._config.network)
        mesh = Mesh(self._world.size, nodes, self._world.size // replicas)
        nodes = mesh.nodes_of(mesh.group("replica", 0))
        return make_schedule(self._config.topology.name, replicas, nodes).gradients_sent

    def run(self, checkpoint: CheckpointReader | None = None) -> bool:
        """Warms up, resumes from `checkpoint`, trains, evaluates on the grid and at the end, and summarizes.

        Returns whether the run came to its end. It did not if `stop` was true on some rank; a checkpoint is
        saved then. Raises DivergedError, with all rows recorded, if training cannot go on: see `Divergence`.
        """
        first = self.start(checkpoint)
        try:
            finished = self.advance(first, self.steps)
        finally:
            self._clock.stop()
            self._progress.close()
            if self._watch is not None:
                self._watch.close()
        if finished:
            self._end()
        return finished

    def start(self, checkpoint: CheckpointReader | None = None) -> int:
        """Warms up and loads the state of `checkpoint`; returns the number of the first step."""
        self._warm_up()
        self._layouts = agreed_layouts(self._world, self._parallelism)
        self._entropies.start()
        self._profile = settle_profile(self._config, self._directory, self._parts, self._batches)
        measure = self._config.measure
        traces = self._traces() if measure.trace and measure.spans else None
        sent = self._gradients_sent
        self._log = StepLog(self._world, self._layouts.coordinates, sent, traces, self._tokens)
        if self._clock.kind == "wall":
            (rank,) = self._world.ranks
            self._watch = own_watch(self._world.recorders[rank], rank, os.environ)
        first = 0
        if checkpoint is not None:
            state = self._checkpoints.resume(checkpoint, self._layouts.hash)
            first, self._started = state.step, self._started - state.wall_time_s
            self._divergence.skipped_in_a_row = self._skipped_before()
        elif self._train.start_from is not None:
            first = self._checkpoints.start_from(Path(self._train.start_from), self._layouts.hash)
        self._progress.start(first, self._layouts.coordinates)
        return first

    def _traces(self) -> TraceWriter:
        measure = self._config.measure
        return TraceWriter(
            self._directory,
            run=self._checkpoints.run,
            every=measure.trace_every,
            most_bytes=1e6 * measure.trace_mb,
        )

    def _skipped_before(self) -> int:
        """How many steps before the one to continue with were skipped in a row, as rank 0's record says."""
        count = 0 if self._writer is None else skipped_at_the_end(self._writer.steps())
        return int(max(own for (own,) in self._world.gather({r: [float(count)] for r in self._world.ranks})))

    def advance(self, first: int, stop: int) -> bool:
        """Trains steps `first` to `stop`; returns False if a request to stop ended them earlier."""
        self._barrier.start(first)
        self._clock.start()
        for done in range(first + 1, stop + 1):
            beat("training", done - 1)
            self._log.add(self._step(done - 1))
            self._progress.step()
            last = done == self.steps
            evaluates = last or done % self._eval.every == 0
            saves = not last and self._saves_after(done)
            if evaluates or saves or self._divergence.reason or self._barrier.due(done):
                with self._clock.paused():
                    if self._pause(done, evaluates, saves) and not last:
                        return False
        return True

    def _pause(self, done: int, evaluates: bool, saves: bool) -> bool:
        """Does the work off the clock after `done` steps; returns whether some rank was asked to stop."""
        self._record_steps()
        if evaluates:
            beat("evaluation", done)
            self._parallelism.finish()
            self._evaluate(done)
        # Ranks meet last: else the others' clocks would run while rank 0 still writes.
        stop = self._barrier.wait(self._world, done, self._stop())
        self._divergence.raise_if_found()
        if saves or (stop and done < self.steps):
            beat("checkpoint", done)
            self._parallelism.finish()
            skipping = self._divergence.skipped_in_a_row > 0
            wall_time_s = time.perf_counter() - self._started
            self._checkpoints.save(done, self._layouts.hash, wall_time_s, keep_all=skipping)
            self._barrier.wait(self._world, done, False)
        return stop

    def _saves_after(self, done: int) -> bool:
        """Whether to save: not while steps are skipped, because the good checkpoints may be those before."""
        every = self._train.checkpoint_every
        return every is not None and done % every == 0 and not self._divergence.skipped_in_a_row

    def _warm_up(self) -> None:
        """Makes discarded passes, at least as many as settle the buckets."""
        passes = max(self._parallelism.settling_passes, self._config.measure.warmup_steps)
        self._parallelism.warm_up(self._batches.of_step(0), passes)

    def _step(self, step: int) -> PendingStep:
        every, train = self._vnmse_every, self._train
        compared, saved = bool(every) and step % every == 0 and self._world.size > 1, step in self._save_at
        entropies = self._entropies.due(step)
        measured = compared or saved or entropies
        rate = learning_rate(
            step,
            lr=train.lr,
            warmup_steps=train.warmup_steps,
            end_factor=train.end_factor,
            schedule_steps=self._schedule_steps,
            schedule=train.schedule,
            decay_steps=self._decay_steps,
            decay_factor=train.decay_factor,
        )
        before = self._weights_before(step)
        self._world.take_traffic()  # what was sent since the last step is no step's
        rank = self._world.ranks[0]
        recorder = self._world.recorders[rank]
        if self._watch is not None:
            self._watch.begin()
        self._world.begin_step(self._clock.seconds)
        start = recorder.timestamp()
        outcome = self._parallelism.step(step, self._batches.of_step(step), rate, measured)
        windows = self._world.windows() or {rank: (start, recorder.timestamp()) for rank in self._world.ranks}
        observed = {} if self._watch is None else {rank: self._watch.end()}
        if outcome.simulated_s is not None:
            self._clock.advance(outcome.simulated_s)
        self._divergence.see_step(step + 1, outcome.skipped)
        if outcome.decision:
            self._decisions.append({STEP: step + 1, **outcome.decision})
        shared = self._shared(step, outcome, rate, measured)
        sent, seconds = self._world.take_traffic(), self._clock.seconds
        pending = PendingStep(shared, outcome.losses, seconds, windows, outcome.simulated_s, sent, observed)
        if measured:
            with self._clock.paused():
                if compared:
                    error = self._parallelism.gradient_error()
                    shared |= {"vnmse": error.vnmse, **error.figures}
                if saved:
                    self._save_gradients(step)
                if entropies:
                    self._entropies.record(step)
        if before is not None:
            with self._clock.paused():
                self._save_weights(step, before)
        return pending

    def _weights_before(self, step: int) -> torch.Tensor | None:
        """The model's weights before a step whose weights are kept."""
        if step not in self._save_weights_at:
            return None
        with self._clock.paused():
            return weights_before(self._parallelism)

    def _save_weights(self, step: int, before: torch.Tensor) -> None:
        writes = self._writer is not None
        save_weights(self._config, self._parallelism, self._directory, step, before, writes=writes)

    def _save_gradients(self, step: int) -> None:
        writes = self._writer is not None
        save_gradients(self._config, self._parallelism, self._directory, step, writes=writes)

    @staticmethod
    def _shared(step: int, outcome: StepOutcome, rate: float, measured: bool) -> dict[str, Any]:
        return {
            "step": step,
            "lr": rate,
            "grad_norm": outcome.grad_norm,
            "skipped": outcome.skipped,
            "measured": measured,
            **{f"codec/{name}": value for name, value in outcome.logged.items()},
        }

    def _record_steps(self) -> None:
        rows = self._log.flush()
        if rows:
            self._progress.show(rows[-1])
            self._progress.skipped([row["step"] for row in rows if row["skipped"]])
        entropies = self._entropies.take_rows()
        if self._writer is not None:
            self._writer.add_steps(rows)
            self._writer.add_decisions(self._about_decisions, self._decisions)
            self._writer.add_entropies(partial(self._entropies.header, about_run(self._config)), entropies)
        self._decisions = []

    def _about_decisions(self) -> dict[str, Any]:
        """The first line of `decisions.jsonl`: whose they are."""
        return {STEPS: self.steps, SETTINGS: decided_about(self._config.mapping())}

    def _evaluate(self, step: int) -> None:
        metrics = self._parallelism.evaluate(self._objective, self._eval.micro_batch)
        seconds = [self._clock.seconds for _ in self._world.ranks]
        clocks = self._world.gather(dict(zip(self._world.ranks, ([s] for s in seconds), strict=True)))
        row = {
            "step": step,
            "train_time_s": max(clock for (clock,) in clocks),
            "wall_time_s": time.perf_counter() - self._started,
            **metrics,
        }
        self._progress.evaluation(row, self._objective.metric)
        self._divergence.see_evaluation(step, row, self._objective.metric)
        if self._writer is not None:
            self._writer.add_evaluation(row)

    def _workers_here(self) -> int:
        """How many ranks this machine has, as whoever started them says."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self._world.size))

    def _end(self) -> None:
        """Gathers the byte counters; then rank 0 alone writes weights and summary, however long it takes.

        DONE comes last.
        """
        beat(ENDING, self.steps)
        sent = bytes_by_phase(self._world)
        model = self._parallelism.whole_model() if self._train.save_checkpoint else None
        if self._writer is None:
            return
        if model is not None:
            self._writer.save_weights(model, self._data.tokenizer)
        summary = summarize(
            self._config.mapping(),
            metric=self._objective.metric,
            config_hash=self._checkpoints.run,
            steps=self._writer.steps(),
            evaluations=self._writer.evaluations(),
            clock=self._clock.kind,
            wall_time_s=time.perf_counter() - self._started,
            bytes_by_rank=[sum(counts.values()) for counts in sent],
            bytes_by_phase={
                phase: sum(counts[phase] for counts in sent)
                for phase in COUNTED_PHASES
                if phase in PHASES or any(counts[phase] for counts in sent)
            },
            num_coordinates=self._layouts.coordinates,
            gradients_sent=self._gradients_sent,
            layout_hash=self._layouts.hash,
            data=self._data.description,
            attempts=Attempts.read(self._directory),
            profile=said_of_profile(self._world, self._profile),
            workers_per_machine=None if self._watch is None else self._workers_here(),
        )
        beat()
        self._writer.finish(summary)
        beat(COMPLETE)
