"""The training loop. It owns steps, data, evaluation, the clock and the record."""

from __future__ import annotations

import time
from typing import Any

import torch
from omegaconf import DictConfig

from gradwire.harness.data.batches import make_batch
from gradwire.harness.data.order import sample_indices
from gradwire.harness.measure.clock import TrainingClock
from gradwire.harness.parallel.buckets import layout_hash
from gradwire.harness.parallel.interface import MicroBatches, StepOutcome
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.trainer.build import Parts
from gradwire.harness.trainer.evaluate import evaluate, perplexity
from gradwire.harness.trainer.progress import Progress
from gradwire.harness.trainer.schedule import learning_rate, num_steps
from gradwire.harness.trainer.steplog import PendingStep, StepLog
from gradwire.harness.trainer.summarize import summarize
from gradwire.harness.transport.channel import PHASES


class Trainer:
    """Trains one run to its end.

    `writer` is rank 0's record, None on the other ranks; `started` when the run began, by perf_counter.
    """

    def __init__(
        self, config: DictConfig, parts: Parts, writer: RunWriter | None, title: str, started: float
    ) -> None:
        self._config, self._writer, self._started = config, writer, started
        self._world, self._parallelism, self._data = parts.world, parts.parallelism, parts.data
        train = config.train
        per_step = self._world.size * train.micro_batch * train.accumulation
        sequences = len(self._data.train)
        self.steps = num_steps(train.steps, train.epochs, sequences, per_step)
        self._schedule_steps = self.steps
        if train.schedule_steps is not None or train.schedule_epochs is not None:
            self._schedule_steps = num_steps(train.schedule_steps, train.schedule_epochs, sequences, per_step)
        simulated = config.cluster.name == "virtual"
        self._clock = TrainingClock("simulated" if simulated else "wall", self._world.device)
        self._progress = Progress(title, self.steps, writer is not None)
        self._step_rows: list[dict[str, Any]] = []
        self._eval_rows: list[dict[str, Any]] = []

    def run(self) -> None:
        """Warm up, train, evaluate on the grid and at the end, summarize."""
        self._warm_up()
        coordinates = sum(layout.numel for layout in self._parallelism.layout())
        log = StepLog(self._world, coordinates)
        self._clock.start()
        for step in range(self.steps):
            log.add(self._step(step), simulated=self._clock.kind == "simulated")
            self._progress.step()
            last = step == self.steps - 1
            evaluated = last or (step + 1) % self._config.eval.every == 0
            if evaluated or (step + 1) % self._config.train.log_every == 0:
                with self._clock.paused():
                    self._record_steps(log)
                    if evaluated:
                        self._parallelism.finish()
                        self._evaluate(step + 1)
                    self._meet()  # else the others' clocks would run while rank 0 still writes
        self._progress.close()
        self._end(coordinates)

    def _warm_up(self) -> None:
        """Discarded passes: DDP settles its buckets in the second (with static_graph: third) pass."""
        needed = 3 if self._config.parallel.static_graph else 2
        passes = max(needed, self._config.measure.warmup_steps)
        self._parallelism.warm_up(self._batches(0), passes)
        own = int(layout_hash(self._parallelism.layout())[:12], 16)  # 48 bits: exact in a float64
        hashes = self._world.gather({rank: [float(own)] for rank in self._world.ranks})
        different = [rank for rank, row in enumerate(hashes) if row != hashes[0]]
        if different:
            raise RuntimeError(f"ranks {different} have other buckets than rank 0 after warm-up")

    def _batches(self, step: int) -> MicroBatches:
        train, device = self._config.train, self._world.device
        return {
            rank: [self._micro_batch(step, index, rank, device) for index in range(train.accumulation)]
            for rank in self._world.ranks
        }

    def _micro_batch(self, step: int, index: int, rank: int, device: torch.device) -> dict[str, torch.Tensor]:
        config = self._config
        indices = sample_indices(
            len(self._data.train),
            config.seed,
            step,
            index,
            rank,
            world_size=self._world.size,
            micro_batch=config.train.micro_batch,
            accumulation=config.train.accumulation,
        )
        key = (config.seed, step)
        batch = make_batch(self._data, indices, config.model.objective, generator_key=key)
        return {name: value.to(device, non_blocking=True) for name, value in batch.items()}

    def _step(self, step: int) -> PendingStep:
        every = self._config.measure.vnmse_every
        measured = bool(every) and step % every == 0 and self._world.size > 1
        train = self._config.train
        rate = learning_rate(
            step,
            lr=train.lr,
            warmup_steps=train.warmup_steps,
            end_factor=train.end_factor,
            schedule_steps=self._schedule_steps,
        )
        before = {rank: self._world.traffic[rank].total for rank in self._world.ranks}
        recorder = self._world.recorders[self._world.ranks[0]]
        start = recorder.mark()
        outcome = self._parallelism.step(step, self._batches(step), rate, measured)
        window = (start, recorder.mark())
        if outcome.simulated_s is not None:
            window = (0.0, outcome.simulated_s)
            self._clock.advance(outcome.simulated_s)
        shared = self._shared(step, outcome, rate, measured)
        bytes_sent = {rank: self._world.traffic[rank].total - before[rank] for rank in self._world.ranks}
        pending = PendingStep(shared, outcome.losses, self._clock.seconds, window, bytes_sent)
        if measured:
            with self._clock.paused():
                shared["vnmse"] = self._parallelism.gradient_error().vnmse
        return pending

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

    def _record_steps(self, log: StepLog) -> None:
        rows = log.flush()
        self._step_rows += rows
        if rows:
            self._progress.show(rows[-1])
        if self._writer is not None:
            self._writer.add_steps(rows)

    def _meet(self) -> None:
        """Go on when every rank has come here."""
        self._world.gather({rank: [0.0] for rank in self._world.ranks})

    def _evaluate(self, step: int) -> None:
        objective, micro_batch = self._config.model.objective, self._config.eval.micro_batch
        loss = evaluate(self._parallelism.model, self._data, objective, self._world, micro_batch)
        seconds = [self._clock.seconds for _ in self._world.ranks]
        clocks = self._world.gather(dict(zip(self._world.ranks, ([s] for s in seconds), strict=True)))
        row = {
            "step": step,
            "train_time_s": max(clock for (clock,) in clocks),
            "wall_time_s": time.perf_counter() - self._started,
            "loss": loss,
            "perplexity": perplexity(loss),
        }
        self._eval_rows.append(row)
        self._progress.evaluation(row)
        if self._writer is not None:
            self._writer.add_evaluation(row)

    def _end(self, coordinates: int) -> None:
        """Gather the byte counters, then rank 0 alone writes checkpoint and summary, however long it takes.

        DONE is the very last thing.
        """
        counts = self._world.gather(
            {
                rank: [float(self._world.traffic[rank].by_phase[p]) for p in PHASES]
                for rank in self._world.ranks
            }
        )
        if self._writer is None:
            return
        if self._config.train.save_checkpoint:
            self._writer.save_checkpoint(self._parallelism.model, self._data.tokenizer)
        summary = summarize(
            self._config,
            steps=self._step_rows,
            evaluations=self._eval_rows,
            clock=self._clock.kind,
            wall_time_s=time.perf_counter() - self._started,
            bytes_by_rank=[int(sum(row)) for row in counts],
            bytes_by_phase={p: int(sum(row[i] for row in counts)) for i, p in enumerate(PHASES)},
            num_coordinates=coordinates,
            layout_hash=layout_hash(self._parallelism.layout()),
            data=self._data.description,
        )
        self._writer.finish(summary)
