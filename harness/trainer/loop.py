"""The training loop. It owns steps, data, evaluation, the clock and the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradwire.harness.checkpoint.folder import CheckpointReader
from gradwire.harness.network.shaped.rate_changes import ClockListener, ignore_clock
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.timing.measure.clock import TrainingClock
from gradwire.harness.trainer.batches import StepBatches
from gradwire.harness.trainer.calibration import settle_profile
from gradwire.harness.trainer.checkpoints import Checkpointer
from gradwire.harness.trainer.early_end import Divergence, StopBarrier
from gradwire.harness.trainer.measured_steps import MeasuredSteps
from gradwire.harness.trainer.parts import Parts
from gradwire.harness.trainer.recording import Recording
from gradwire.harness.trainer.schedule import TrainingSchedule
from gradwire.harness.trainer.settings import RunConfig
from gradwire.harness.trainer.state import TrainingState

STOP_S = 5.0
"""The longest delay in seconds (or one step) until a request to stop is noticed: ranks then agree at a
barrier."""


class Trainer:
    """Trains one run to its end, or to a request to stop.

    `writes` is set on rank 0, which keeps the record in `directory`. `stop` returns True once this process
    was asked to save and end. `on_clock` is called with the readings of the training clock.
    """

    def __init__(
        self,
        config: RunConfig,
        parts: Parts,
        directory: Path,
        *,
        writes: bool = False,
        stop: Callable[[], bool] = lambda: False,
        on_clock: ClockListener = ignore_clock,
    ) -> None:
        simulated = config.cluster.name == "virtual"
        state = self.state = TrainingState(
            config,
            parts,
            directory,
            schedule=TrainingSchedule.of(config, parts),
            clock=TrainingClock("simulated" if simulated else "wall", parts.world.device, on_clock),
            writer=RunWriter(directory) if writes else None,
            started=parts.began,
        )
        self.batches = StepBatches(parts.objective, parts.parallelism, parts.world, config.train, config.seed)
        self._checkpoints = Checkpointer(state)
        self._measured = MeasuredSteps(state)
        self._recording = Recording(state, self._measured, self._checkpoints.run)
        self._barrier = StopBarrier(config.train.log_every, STOP_S)
        self._divergence = Divergence(config.train.max_skipped)
        self._stop = stop

    def run(self, checkpoint: CheckpointReader | None = None) -> bool:
        """Warms up, resumes from `checkpoint`, trains, evaluates on the grid and at the end, and summarizes.

        Returns whether the run reached its end. It did not if `stop` returned True on some rank; a checkpoint
        is then saved. Raises DivergedError, after recording all rows, if training has diverged: see
        `Divergence`.
        """
        first = self.start(checkpoint)
        try:
            finished = self.advance(first, self.state.schedule.steps)
        finally:
            self.state.clock.stop()
            self._recording.close()
        if finished:
            self._recording.finish()
        return finished

    def start(self, checkpoint: CheckpointReader | None = None) -> int:
        """Warms up and loads the state of `checkpoint`; returns the number of the first step."""
        state, parallelism, config = self.state, self.state.parallelism, self.state.config
        passes = max(parallelism.settling_passes, config.measure.warmup_steps)
        parallelism.warm_up(self.batches.of_step(0), passes)
        state.settle_layouts()
        self._measured.start()
        profile = settle_profile(config, state.directory, state.parts, self.batches)
        first = 0
        if checkpoint is not None:
            first = self._checkpoints.resume(checkpoint)
            self._divergence.resume(state.world, state.writer)
        elif config.train.start_from is not None:
            first = self._checkpoints.start_from(Path(config.train.start_from))
        self._recording.start(first, profile)
        return first

    def advance(self, first: int, stop: int) -> bool:
        """Trains steps `first` to `stop`; returns False if a request to stop ended them earlier."""
        state, world, parallelism = self.state, self.state.world, self.state.parallelism
        self._barrier.start(first)
        state.clock.start()
        for done in range(first + 1, stop + 1):
            beat("training", done - 1)
            self._step(done - 1)

            last = done == state.schedule.steps
            evaluates = last or done % state.config.eval.every == 0
            # No checkpoint is saved while steps are skipped: it might replace the last good one.
            skipping = self._divergence.skipped_in_a_row > 0
            saves = not last and not skipping and self._checkpoints.due(done)
            if not (evaluates or saves or self._divergence.reason or self._barrier.due(done)):
                continue

            with state.clock.paused():
                self._recording.flush()
                if evaluates:
                    beat("evaluation", done)
                    parallelism.finish()
                    row = self._recording.evaluate(done)
                    self._divergence.see_evaluation(done, row, state.parts.objective.metric)
                # Ranks synchronize last: otherwise the other ranks' clocks would run while rank 0 is still
                # writing.
                stopped = self._barrier.wait(world, done, self._stop()) and not last
                self._divergence.raise_if_found()
                if saves or stopped:
                    beat("checkpoint", done)
                    parallelism.finish()
                    self._checkpoints.save(done, keep_all=skipping)
                    self._barrier.wait(world, done, False)
            if stopped:
                return False
        return True

    def _step(self, step: int) -> None:
        """Trains and records one step, given its 0-based number."""
        rate = self.state.schedule.rate(step)
        before = self._measured.weights_before(step)
        self._recording.log.begin()
        batches = self.batches.of_step(step)
        outcome = self.state.parallelism.step(step, batches, rate, self._measured.due(step))
        self._recording.add(step, outcome, rate, before)
        self._divergence.see_step(step + 1, outcome.skipped)
