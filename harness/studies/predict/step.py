"""A step of one data-parallel group: traced once without values, then timed by the clock of its network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.parallel.interface import ParallelSetup
from gradwire.harness.parallel.settings import ParallelConfig, PipelineConfig
from gradwire.harness.parallel.update import OptimizerSettings
from gradwire.harness.studies.predict.group import WorkerGroup
from gradwire.harness.studies.predict.model import META, ModelPart, StagesPart, shrunk
from gradwire.harness.studies.predict.programs import traced_programs
from gradwire.harness.studies.predict.study import PredictTask
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.step import RankTrace, StepTrace

TRIED = "ring"

NO_VALUES = re.compile(r"\bmeta (device type )?tensor", re.IGNORECASE)
"""Matches PyTorch's errors when values of a tensor without values are read."""

MOST_STEPS = 3
"""The number of steps that are simulated if steps leave messages in flight."""

NO_UPDATES = OptimizerSettings(weight_decay=0.0, beta1=0.9, beta2=0.999, adam_epsilon=1e-8, clip_norm=None)


def in_stages(parallel: ParallelConfig) -> int:
    """The number of stages into which a parallelism itself divides the ranks."""
    return parallel.stages if isinstance(parallel, PipelineConfig) else 1


def parallel_setup(
    config: PredictTask, group: WorkerGroup, parallel: ParallelConfig, codec: Mapping[str, Any]
) -> ParallelSetup:
    """The setup that the programs of a group's step need."""
    return ParallelSetup(
        model=config.model,
        parallel=parallel,
        codec=codec,
        topology=config.topology.name,
        workers=group.size,
        device=META.type,
        accumulation=config.predict.micro_batches or 1,
        optimizer=NO_UPDATES,
        seed=config.seed,
        check_hashes=False,
    )


@dataclass(frozen=True)
class Traced:
    """A traced step, with the clock of its network; `sent` holds all ranks' bytes by phase."""

    measured: StepTrace
    clock: SimulatedClock
    sent: Mapping[str, int]
    buckets: int

    def timed(self, compute_s: float) -> RankTrace:
        """The step of the slowest rank if each rank computes for `compute_s`."""
        self.clock.compute = replace(self.clock.compute, given_s=compute_s)
        window = StepWindow(self.clock)
        for number in range(MOST_STEPS):
            timed = window.step(number, self.measured)
            if window.in_flight is None:
                break
        return max(timed.values(), key=lambda own: own.end)

    def seconds(self, compute_s: float) -> float:
        """The length of the step if each rank computes for `compute_s`."""
        return self.timed(compute_s).end


def traced(
    config: PredictTask,
    group: WorkerGroup,
    part: ModelPart,
    parallel: ParallelConfig,
    codec: Mapping[str, Any],
) -> Traced:
    """Runs the programs of a step with this codec. Raises ValueError if a file of codec times lacks needed
    ones."""
    fabric = Fabric(
        partial(make_schedule, config.topology.name),
        num_nodes=group.num_nodes,
        segments=config.overlap.segments,
        stages=in_stages(parallel),
    )
    world = VirtualWorld(group.size, fabric, META, spans=False, inputs="memory")
    setup = parallel_setup(config, group, parallel, codec)
    programs, count_buckets = traced_programs(setup, part, world)
    world.forget()
    world.run_step(0, programs)
    clock = make_clock(
        group.network,
        group.size,
        in_flight=config.overlap.buckets,
        overlap=config.overlap.enabled,
        seed=config.seed,
        codec=codec,
    )
    sent = sum((own.by_phase for own in world.traffic.values()), Counter[str]())
    return Traced(world.measured, clock, dict(sent), count_buckets())


def calibrated(baseline: Traced, seconds: float, key: str) -> float:
    """The computation time, in seconds, with which the step of `baseline` takes `seconds`.

    Raises ValueError, a line that begins with `key`, if the step takes longer even without computation.
    """
    low, high = 0.0, seconds
    below, above = baseline.seconds(1e-9) - seconds, baseline.seconds(high) - seconds
    if below > 0:
        raise ValueError(
            f"{key} is a step of {seconds:.3g} s, and its communication alone takes {below + seconds:.3g} s "
            "on this network; check network=, predict.sequences= and predict.recompute="
        )
    while above > 1e-9 * seconds and high - low > 1e-9 * seconds:
        middle = low + (high - low) * -below / (above - below)
        found = baseline.seconds(middle) - seconds
        if abs(found) <= 1e-9 * seconds:
            return middle
        if found > 0:
            high, above, below = middle, found, below / 2  # regula falsi, Illinois
        else:
            low, below, above = middle, found, above / 2
    return high


def tried_part(model: ModelConfig, parallel: ParallelConfig) -> tuple[ModelPart, int]:
    """A small part of a model, and the number of ranks for trying a codec on it: two for each stage."""
    if not isinstance(parallel, PipelineConfig):
        return ModelPart({"weight": (64, 64)}, 0, 0.0), 2
    small = replace(shrunk(model, width=64), num_layers=parallel.stages)
    return StagesPart({}, 0, 0.0, small, tensor_parallel=1, rows=1, length=1), 2 * parallel.stages


def looks_at_values(config: PredictTask, parallel: ParallelConfig, codec: Mapping[str, Any]) -> bool:
    """True if the programs of a step with this codec read tensor values, found by trying it on small matrices
    without values, with two ranks for each stage.

    Raises ValueError, in one line, for a codec that cannot run with these settings at all.
    """
    part, size = tried_part(config.model, parallel)
    group = WorkerGroup(size, 1, SimulatedConfig(compute_s=1.0, codec_times="none"))
    try:
        parts = replace(config, topology=replace(config.topology, name=TRIED))
        fabric = Fabric(partial(make_schedule, TRIED), stages=in_stages(parallel))
        world = VirtualWorld(group.size, fabric, META, spans=False, inputs="memory")
        setup = parallel_setup(parts, group, parallel, codec)
        world.run_step(0, traced_programs(setup, part, world)[0])
    except NotImplementedError:
        return True
    except (RuntimeError, TypeError) as error:
        if NO_VALUES.search(str(error)) is None:
            raise
        return True
    return False
