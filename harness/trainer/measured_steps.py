"""Measurements of chosen steps: synchronization errors, gradients, weights, and entropies of matrices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.edgc.sampler import estimate, stride_of
from gradwire.codecs.interface import Layout
from gradwire.harness.comm.collective.collectives import all_gathering
from gradwire.harness.comm.world.interface import World
from gradwire.harness.parallel.interface import KeepsMainWeights, KeepsRawBuckets, Parallelism
from gradwire.harness.record.directory import SAVED_WEIGHTS, saved_path
from gradwire.harness.record.entropies import NATS, STEP, MatrixName, header, mean_nats
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.saved_weights import write_weights
from gradwire.harness.timing.trace.step import MEASURE
from gradwire.harness.trainer.state import TrainingState

METHOD = "bits"


class MeasuredSteps:
    """Takes the measurements that the settings `measure` ask for, while the training clock is stopped; all
    processes must call its methods."""

    def __init__(self, state: TrainingState) -> None:
        self._state, self._measure = state, state.config.measure
        every, rates = self._measure.entropy_every, self._measure.entropy_rates
        name = state.config.parallel.name
        self._entropies = EntropyRecorder(state.world, state.parallelism, name, every, rates)

    def start(self) -> None:
        """Prepares for the settled buckets."""
        self._entropies.start()

    def due(self, step: int) -> bool:
        """True if the gradients of `step` must be kept until `after_step`."""
        saved = step in self._measure.save_gradients_at
        return self._compares(step) or saved or self._entropies.due(step)

    def _compares(self, step: int) -> bool:
        every = self._measure.vnmse_every
        return bool(every) and step % every == 0 and self._state.world.size > 1

    def weights_before(self, step: int) -> Tensor | None:
        """The model's weights, (coordinates,) float32 on the CPU, before a step whose weights are saved."""
        if step not in self._measure.save_weights_at:
            return None
        parallelism = self._state.parallelism
        assert isinstance(parallelism, KeepsMainWeights), "other values are refused by the rules"
        with self._state.clock.paused():
            return parallelism.model_weights()

    def after_step(self, step: int, before: Tensor | None) -> dict[str, float | None]:
        """Measures the step that has just ended, and writes the tensors to be saved. Returns figures for its
        row."""
        found = dict[str, float | None]()
        if self.due(step):
            with self._state.clock.paused():
                if self._compares(step):
                    error = self._state.parallelism.gradient_error()
                    found = {"vnmse": error.vnmse, **error.figures}
                if step in self._measure.save_gradients_at:
                    self._save_gradients(step)
                if self._entropies.due(step):
                    self._entropies.record(step)
        if before is not None:
            with self._state.clock.paused():
                self._save_weights(step, before)
        return found

    def write_entropies(self) -> None:
        """Passes the entropy rows since the last call to the record."""
        rows = self._entropies.take_rows()
        if self._state.writer is not None:
            self._state.writer.add_entropies(partial(self._entropies.header, self._state.about()), rows)

    def _save_gradients(self, step: int) -> None:
        state = self._state
        gradients = state.parallelism.raw_gradients()
        if state.writer is not None:
            cap = getattr(state.config.parallel, "bucket_cap_mb", None)  # blocks have none
            about = {"step": step, "run": run_id(state.config), **state.about(), "bucket_cap_mb": cap}
            write_gradients(saved_path(state.directory, step), gradients, state.parallelism.layout(0), about)

    def _save_weights(self, step: int, before: Tensor) -> None:
        state = self._state
        assert isinstance(state.parallelism, KeepsMainWeights)
        main = state.parallelism.main_weights()
        if state.writer is not None:
            path, about = saved_path(state.directory, step, SAVED_WEIGHTS), {"step": step, **state.about()}
            write_weights(path, before, main, state.parallelism.layout(0), about)


class EntropyRecorder:
    """Estimates entropies of measured steps, every `every` steps, at each of the sampling `rates`.

    All processes must call its methods; the training clock is stopped meanwhile. Raises ValueError, in one
    line, for a parallelism that keeps no worker's gradients, and for a rate out of range.
    """

    def __init__(
        self, world: World, parallelism: Parallelism, name: str, every: int, rates: Sequence[float]
    ) -> None:
        if every and not isinstance(parallelism, KeepsRawBuckets):
            raise ValueError(
                f"measure.entropy_every={every}: parallel={name} keeps no worker's gradients; leave it out "
                "or use parallel=ddp"
            )
        self._world, self._parallelism, self._every, self._rates = world, parallelism, every, list(rates)
        self._strides = [stride_of(rate) for rate in rates]
        self._matrices: dict[int, list[MatrixName]] = {}
        self._rows: list[dict[str, Any]] = []

    def due(self, step: int) -> bool:
        """True if the entropies of `step` are recorded, so that it has to be measured."""
        return bool(self._every) and step % self._every == 0

    def start(self) -> None:
        """Gathers the matrices of all ranks; after warm-up."""
        if self._every:
            own = {rank: self._own_matrices(rank) for rank in self._world.ranks}
            texts = _gather_texts(self._world, {rank: json.dumps(found) for rank, found in own.items()})
            for rank, text in enumerate(texts):
                found = [MatrixName(*entry) for entry in json.loads(text)]
                self._matrices[rank] = found

    def header(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """The first line of the file."""
        matrices = [matrix for _, ranks in self._by_group() for matrix in self._matrices[ranks[0]]]
        return header(matrices, self._rates, about)

    def take_rows(self) -> list[dict[str, Any]]:
        """The rows since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def record(self, step: int) -> None:
        """Adds the row of `step`, which is the last step and was measured."""
        width = len(self._rates) * max(map(len, self._matrices.values()))
        own = {rank: self._estimates(rank, step) for rank in self._world.ranks}
        padded = {rank: [*found, *[math.nan] * (width - len(found))] for rank, found in own.items()}
        gathered = self._world.gather(padded)
        nats: list[list[float]] = [[] for _ in self._rates]
        for _, ranks in self._by_group():
            count = len(self._matrices[ranks[0]])
            for number, row in enumerate(nats):
                first = number * count
                columns = zip(*(gathered[rank][first : first + count] for rank in ranks), strict=True)
                row.extend(round(mean_nats(column), 6) for column in columns)
        self._rows.append({STEP: step, NATS: nats})

    def _estimates(self, rank: int, step: int) -> list[float]:
        """The estimates of a hosted rank, rate by rate; the step is the seed of the draws."""
        assert isinstance(self._parallelism, KeepsRawBuckets)
        buckets = self._parallelism.raw_buckets(rank)
        found = []
        for stride in self._strides:
            for layout, bucket in zip(self._parallelism.layout(rank), buckets, strict=True):
                for _, offset, numel in _matrices_of(layout):
                    found.append(estimate(bucket[offset : offset + numel], METHOD, stride, step))
        return found

    def _own_matrices(self, rank: int) -> list[tuple[str, int, int, int]]:
        group = self._parallelism.group(rank)
        found = []
        for layout in self._parallelism.layout(rank):
            for index, _, numel in _matrices_of(layout):
                rows = layout.shapes[index][0]
                found.append((layout.names[index], rows, numel // rows, group))
        return found

    def _by_group(self) -> Sequence[tuple[int, list[int]]]:
        """The ranks of each group that shares parameters."""
        groups: dict[int, list[int]] = {}
        for rank in range(self._world.size):
            stage = self._matrices[rank][0].stage if self._matrices[rank] else -1
            groups.setdefault(stage, []).append(rank)
        return [(group, ranks) for group, ranks in sorted(groups.items()) if group >= 0]


def _matrices_of(layout: Layout) -> list[tuple[int, int, int]]:
    """(index, offset, coordinates) of each parameter with at least two dimensions."""
    return [
        (index, offset, math.prod(shape))
        for index, (shape, offset) in enumerate(zip(layout.shapes, layout.offsets, strict=True))
        if len(shape) >= 2
    ]


def _gather_texts(world: World, own: Mapping[int, str]) -> list[str]:
    """Gathers the text of every rank on all ranks."""
    codes = {
        rank: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(world.device)
        for rank, text in own.items()
    }
    sizes = [int(size) for (size,) in world.gather({rank: [each.numel()] for rank, each in codes.items()})]
    found = world.run({rank: all_gathering(each, MEASURE, sizes) for rank, each in codes.items()})
    return [bytes(each.tolist()).decode() for each in found[world.ranks[0]]]
