"""Steps of a pipeline by our engine and by torch's own, on equal stages and the same batches.

Also a benchmark, of the CPU time of a step: python tests/pipeline_engine_jobs.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
from pool import WorkerPool
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from training_jobs import tiny_run

from gradwire.harness.models.build import build_model
from gradwire.harness.models.stages import Stage, make_stage
from gradwire.harness.parallel.pipeline.parallelism import Pipeline
from gradwire.harness.parallel.settings import PipelineConfig
from gradwire.harness.trainer.loop import Trainer
from gradwire.harness.trainer.parts import build
from gradwire.harness.trainer.settings import RunConfig

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
RATE, ROUNDS = 0.1, 60


class Engine(NamedTuple):
    """`step` computes a step's passes and returns the loss, 0 but in the last stage; `parameters` are this
    stage's by name."""

    step: Callable[[], float]
    parameters: Mapping[str, nn.Parameter]

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}


class Part(nn.Module):
    """A stage as torch's engine calls it: tokens or hidden states to hidden states or logits."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, given: Tensor) -> Tensor:
        output = self.stage(None, input_ids=given) if self.stage.is_first else self.stage(given)
        return cast(Tensor, output.logits if self.stage.is_last else output)


def engines(rank: int, size: int, config: RunConfig) -> tuple[Engine, Engine]:
    """Ours, and torch's."""
    parts = build(config, torch.device("cpu"))
    pipeline, world, settings = parts.parallelism, parts.world, config.parallel
    assert isinstance(pipeline, Pipeline)
    assert isinstance(settings, PipelineConfig)
    trainer = Trainer(config, parts, Path("unused"))
    trainer.start()
    held, batches = pipeline._held(rank), trainer.batches.of_step(0)[rank]
    program = partial(pipeline._gradients, 0, batches, measured=False)

    def step() -> float:
        _forget(held.stage)
        found = world.run_step(0, {rank: program}).results[rank].loss
        world.settle()
        return found if held.stage.is_last else 0.0

    whole = build_model(config.model, parts.data.vocab_size, seed=config.seed)
    stage = make_stage(whole, config.model.family, rank, size)
    loss_of = partial(stage.model.loss_function, vocab_size=stage.model.config.vocab_size)
    schedule = SCHEDULES[settings.schedule](
        PipelineStage(Part(stage), rank, size, torch.device("cpu")), len(batches), loss_fn=loss_of
    )
    tokens, labels = (torch.cat([batch[name] for batch in batches]) for name in ("input_ids", "labels"))

    def theirs() -> float:
        _forget(stage)
        losses: list[Tensor] = []
        if stage.is_last:
            schedule.step(target=labels, losses=losses)
            return float(torch.stack(losses).detach().double().mean())
        schedule.step(*([tokens] if stage.is_first else []))
        return 0.0

    return Engine(step, held.stage.named()), Engine(theirs, stage.named())


def _forget(stage: Stage) -> None:
    for parameter in stage.parameters():
        parameter.grad = None


class Trained(NamedTuple):
    """The losses of the steps, and the last one's gradients."""

    losses: list[float]
    gradients: Mapping[str, Tensor]


def both_train(rank: int, size: int, config: RunConfig, steps: int) -> list[Trained]:
    """The results of each engine after so many steps of plain gradient descent on the same batch."""
    return [_trained(engine, steps) for engine in engines(rank, size, config)]


def _trained(engine: Engine, steps: int) -> Trained:
    losses = []
    for _ in range(steps):
        losses.append(engine.step())
        with torch.no_grad():
            for name, gradient in engine.gradients().items():
                engine.parameters[name].sub_(gradient, alpha=RATE)
    return Trained(losses, {name: gradient.clone() for name, gradient in engine.gradients().items()})


def cpu_seconds(rank: int, size: int, config: RunConfig, rounds: int) -> list[list[float]]:
    """CPU seconds of this process's steps by each engine, by turns."""
    found: list[list[float]] = [[], []]
    made = engines(rank, size, config)
    for _ in range(rounds):
        for engine, seconds in zip(made, found, strict=True):
            start = time.process_time()
            engine.step()
            seconds.append(time.process_time() - start)
    return found


def untied(schedule: str, *overrides: str) -> RunConfig:
    """A run of two stages and one replica whose embeddings are not tied: torch's engine does not support tied
    ones."""
    return tiny_run(
        *("parallel=pipeline", "cluster.workers=2", f"parallel.schedule={schedule}", "codec=fp32"),
        *("model.tie_embeddings=false", "model.dropout=0", "train.accumulation=4"),
        *("model.num_layers=2", *overrides),
    )


def main() -> None:
    pool = WorkerPool()
    for schedule in SCHEDULES:
        config = untied(schedule, "model.hidden_size=256", "model.num_layers=4", "train.micro_batch=4")
        ranks = pool.run(2, cpu_seconds, config, ROUNDS)
        ours, theirs = (
            [sum(own[engine][index] for own in ranks) for index in range(5, ROUNDS)] for engine in range(2)
        )
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"{schedule}: {1e3 * statistics.median(ours):.1f} ms of CPU time a step, torch's engine "
            f"{1e3 * statistics.median(theirs):.1f} ms; {ratio:.3f} x, the fastest steps "
            f"{min(ours) / min(theirs):.3f} x"
        )
    pool.close()


if __name__ == "__main__":
    main()
