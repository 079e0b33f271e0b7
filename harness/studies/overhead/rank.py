"""Alternating blocks of steps of the trainer and of a plain loop on each rank, and the comparison of their
times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.worker import joined_process_group
from gradwire.harness.models.build import build_model
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.settings import DataParallelConfig
from gradwire.harness.parallel.update import optimizer_of
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.studies.overhead.study import BlockRatio, OverheadTask, StepRatio, StepSeconds
from gradwire.harness.timing.measure.spans import span_cost
from gradwire.harness.trainer.loop import Trainer
from gradwire.harness.trainer.parts import Parts, build, optimizer_settings
from gradwire.harness.trainer.settings import RunConfig

Contestant = Callable[[int], object]
"""Runs the given number of steps."""


@dataclass(frozen=True)
class TimedBlock:
    """One block of one contestant: seconds per step, on one rank or over all of them."""

    cpu_s: float
    wall_s: float


def alternate(
    contestants: Mapping[str, Contestant], blocks: int, steps: int, meet: Callable[[], object]
) -> dict[str, list[TimedBlock]]:
    """Runs `blocks` blocks of `steps` steps of each contestant in turn; every other round in reverse order.

    The first round is not counted. `meet` synchronizes all ranks before each block. CPU time is that of this
    process, including its communication threads.
    """
    found: dict[str, list[TimedBlock]] = {name: [] for name in contestants}
    for number in tracked(range(blocks + 1), "overhead", "round"):
        for name in sorted(contestants, reverse=bool(number % 2)):
            meet()
            cpu, wall = time.process_time(), time.perf_counter()
            contestants[name](steps)
            block = TimedBlock((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)
            if number:
                found[name].append(block)
    return found


def as_lists(blocks: Mapping[str, Sequence[TimedBlock]]) -> dict[str, list[list[float]]]:
    """Contestant to [CPU, wall] of each block, for JSON."""
    return {name: [[block.cpu_s, block.wall_s] for block in found] for name, found in blocks.items()}


def over_ranks(ranks: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> dict[str, list[TimedBlock]]:
    """Combines all ranks' blocks (in the form of `as_lists`): sums of CPU times, and the longest wall
    time.
    """
    return {
        name: [
            TimedBlock(sum(cpu for cpu, _ in same), max(wall for _, wall in same))
            for same in zip(*(rank[name] for rank in ranks), strict=True)
        ]
        for name in ranks[0]
    }


def ratio(candidate: Sequence[float], baseline: Sequence[float]) -> BlockRatio | None:
    """The ratio of the medians, and the smallest, median and largest ratio of two blocks of the same round;
    None if a clock has not advanced in a block."""
    if not all(baseline):
        return None
    rounds = sorted(first / second for first, second in zip(candidate, baseline, strict=True))
    return BlockRatio(median(candidate) / median(baseline), rounds[0], median(rounds), rounds[-1])


def summarize(blocks: Mapping[str, Sequence[TimedBlock]], baseline: str) -> dict[str, Any]:
    """Medians per contestant in seconds a step, ratios to `baseline`, and all blocks as [CPU, wall]: fields
    of the record."""
    cpu = {name: [block.cpu_s for block in found] for name, found in blocks.items()}
    wall = {name: [block.wall_s for block in found] for name, found in blocks.items()}
    return {
        "seconds_per_step": {name: StepSeconds(median(cpu[name]), median(wall[name])) for name in blocks},
        "ratio": {
            name: StepRatio(ratio(cpu[name], cpu[baseline]), ratio(wall[name], wall[baseline]))
            for name in blocks
            if name != baseline
        },
        "blocks": as_lists(blocks),
    }


def data_parallel(config: RunConfig) -> DataParallelConfig:
    """The run's own settings of data parallelism, or default ones with buckets of the same size."""
    own = config.parallel
    return own if isinstance(own, DataParallelConfig) else DataParallelConfig(bucket_cap_mb=own.bucket_cap_mb)


class BareLoop:
    """Trains `model` as the trainer does with `codec=backend`: the same batches and optimizer, and DDP's own
    all-reduce."""

    def __init__(
        self, config: RunConfig, model: nn.Module, objective: Objective, rank: int, device: torch.device
    ) -> None:
        train, parallel = config.train, data_parallel(config)
        self._model = DistributedDataParallel(
            model.to(device),
            bucket_cap_mb=parallel.bucket_cap_mb,
            static_graph=parallel.static_graph,
            find_unused_parameters=parallel.find_unused_parameters,
            gradient_as_bucket_view=parallel.gradient_as_bucket_view,
        )
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = optimizer_of(self._parameters, optimizer_settings(train))
        for group in self._optimizer.param_groups:
            group["lr"] = train.lr
        self._clip = float("inf") if train.clip_norm is None else train.clip_norm
        self._objective, self._micro_batch, self._device = objective, train.micro_batch, device
        self._generator = torch.Generator().manual_seed(rank)

    def run(self, steps: int) -> float:
        """Takes `steps` optimizer steps; returns the last loss."""
        loss = torch.zeros(())
        for _ in range(steps):
            loss = self._model(**self._batch()).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _batch(self) -> dict[str, Tensor]:
        objective = self._objective
        rows = torch.randint(len(objective.data.train), (self._micro_batch,), generator=self._generator)
        return {name: value.to(self._device) for name, value in objective.batch(rows).items()}


BARE, HARNESS, WITHOUT_SPANS = "bare", "harness", "harness without recording"
WITH_DDP = "harness with parallel=ddp"
"""A further contestant if the configuration has another parallelism."""


def benchmark_rank(config: OverheadTask, directory: Path, rendezvous: Path, rank: int) -> None:
    """Runs the contestants on this rank and writes `rank<rank>.json` to `directory`."""
    with (
        joined_process_group(config.cluster, config.network, rank, rendezvous) as device,
        using_kernels(config.kernels.name),
    ):
        with_spans = Stepper(config, device, directory / HARNESS, spans=True)
        without = Stepper(config, device, directory / WITHOUT_SPANS, spans=False)
        data, objective = with_spans.parts.data, with_spans.parts.objective
        model = build_model(config.model, data.vocab_size, seed=config.seed, labels=data.labels)
        model.train()
        contestants = {
            BARE: BareLoop(config, model, objective, rank, device).run,
            HARNESS: with_spans.run,
            WITHOUT_SPANS: without.run,
        }
        steppers = [with_spans, without]
        if config.parallel.name != "ddp":
            replicated = replace(config, parallel=data_parallel(config))
            steppers.append(Stepper(replicated, device, directory / WITH_DDP, spans=True))
            contestants[WITH_DDP] = steppers[-1].run
        blocks = alternate(contestants, config.overhead.blocks, config.overhead.steps, _meet)
        found = {"blocks": as_lists(blocks), "recording": with_spans.recording()}
        write_atomically(directory / f"rank{rank}.json", json.dumps(found))
        for stepper in steppers:
            stepper.parts.world.close()


def _meet() -> None:
    beat("blocks")
    dist.barrier()


class Stepper:
    """Runs the trainer a block of steps at a time, without evaluation, error measurement or checkpoints.

    With `spans` it also writes traces to `directory`.
    """

    def __init__(self, config: RunConfig, device: torch.device, directory: Path, *, spans: bool) -> None:
        own = replace(config, measure=replace(config.measure, spans=spans, trace=spans))
        directory.mkdir(exist_ok=True)
        self.parts: Parts = build(own, device)
        self._trainer = Trainer(own, self.parts, directory)
        self._done = self._trainer.start()

    def run(self, steps: int) -> None:
        self._trainer.advance(self._done, self._done + steps)
        self._done += steps

    def recording(self) -> dict[str, float]:
        """The cost of recording spans: spans per step, and seconds per span. Traces cost more; the difference
        from the harness without recording shows both."""
        recorder = self.parts.world.recorders[self.parts.world.ranks[0]]
        return {"spans_per_step": recorder.total / self._done, "span_s": span_cost()}
