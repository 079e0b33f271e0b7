"""A parallelism from outside: local SGD. Ranks train on by themselves, and every few steps take the mean of
their weights, of which a codec sends what has changed: at once, or while the next step computes.

PYTHONPATH=examples/plugins python run.py size=tiny parallel=local_sgd:every_4 codec=dynamiq cluster=virtual
PYTHONPATH=examples/plugins python run.py size=tiny parallel=local_sgd:delayed_4 codec=dynamiq cluster=virtual
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.interface import Decision, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.world.interface import CollectivePlace, RankStep, Started, Submission, World
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.buffers import RankTensors
from gradwire.harness.parallel.evaluate import evaluate
from gradwire.harness.parallel.gradient_error import GradientError, MeasuredBucket, gather_raw, gradient_error
from gradwire.harness.parallel.interface import (
    Batch,
    MicroBatches,
    ParallelSetup,
    ReadPart,
    StepOutcome,
)
from gradwire.harness.parallel.passes import forward_backward
from gradwire.harness.parallel.registry import ParallelKind
from gradwire.harness.parallel.state import Snapshot
from gradwire.harness.parallel.synchronize import end_codecs, synchronization
from gradwire.harness.parallel.update import Updater


class RankOutcome(NamedTuple):
    """A rank's report on its step; `change`: of its weights since the last mean, if it was measured."""

    loss: Tensor
    grad_norm: float
    skipped: bool
    change: MeasuredBucket | None


class Sent(NamedTuple):
    """The change of a rank since the last mean; the mean of all ranks' changes, which is on its way."""

    change: Tensor
    mean: Started[Tensor]


class LocalSGD:
    """Every rank has weights and moments of its own; their mean after every `every` steps is the model.

    It is taken in the step that `delay` later, 0 or 1 (fewer than `every`), on top of which a rank keeps what
    it has changed since it sent.
    """

    settling_passes = 1

    def __init__(
        self,
        setup: ParallelSetup,
        model: nn.Module,
        accelerator: Accelerator,
        world: World,
        *,
        every: int,
        delay: int,
    ) -> None:
        self._setup, self._model, self._accelerator, self._world = setup, model, accelerator, world
        self._every, self._delay, self.replicas = every, delay, world.size
        self._prepared = accelerator.prepare_model(model, evaluation_mode=True)
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._codecs = {rank: make_codec(**setup.codec) for rank in world.ranks}
        supports = next(iter(self._codecs.values())).supports
        layouts = BucketLayouts(model, partial(supports, setup.topology, world.size))
        self._layout = layouts.named(tuple(self._weights), torch.float32, world.device)
        self._updater = Updater(model, setup.optimizer)
        self._mean = self._flat()
        self._sent: dict[int, Sent] = {}
        self._ended: tuple[Mapping[str, float], Decision] | None = None
        self._copies: dict[int, list[MeasuredBucket]] = {}
        self._takes_mean = False

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        before = Snapshot(self._model, self._codecs)
        weights = self._flat()
        for index in range(passes):
            self._forward_backward(-1 - index, batches[self._world.ranks[0]], self._world.ranks[0])
            self._updater.warm_up()
        self._own = RankTensors(self._local_state(), self._world.ranks)
        self._world.run_step(-1, dict.fromkeys(self._codecs, self._warm_up_mean))
        end_codecs(self._world, self._codecs, -1)
        self._mean.copy_(weights)  # a codec may turn zeros into something
        for rank in self._codecs:
            self._own.load(rank)
            self._set(weights)
        before.restore(self._model, self._codecs)
        self._world.forget()

    async def _warm_up_mean(self, rank_step: RankStep) -> None:
        self._send(-1, rank_step)
        await self._take_mean(rank_step, False)

    def _local_state(self) -> dict[str, Tensor]:
        """The state of a rank alone: weights, moments and counts of steps."""
        moments = {f"optimizer/{key}": value for key, value in self._updater.state_dict().items()}
        return {**self._weights, **moments}

    def _forward_backward(self, step: int, batches: Sequence[Batch], rank: int) -> Tensor:
        return forward_backward(self._prepared, self._accelerator, batches, self._setup.seed, step, rank)

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        self._takes_mean = self._sends(step - self._delay)
        programs = {
            rank: partial(self._step_of_rank, step, own, learning_rate, measured)
            for rank, own in batches.items()
        }
        ended = self._world.run_step(step, programs)
        found = ended.results
        self._copies = {rank: [own.change] for rank, own in found.items() if own.change is not None}
        rows = self._world.gather({rank: [own.grad_norm, own.skipped] for rank, own in found.items()})
        norm, skipped = sum(row[0] for row in rows) / len(rows), any(row[1] for row in rows)
        losses = {rank: float(own.loss) for rank, own in found.items()}
        if not self._takes_mean:
            decision = decision_of(next(iter(self._codecs.values())))
            return StepOutcome(losses, norm, skipped, ended.simulated_s, {}, decision)
        logged, decision = self._end_codecs(step - self._delay)
        self._ended = None
        return StepOutcome(losses, norm, skipped, ended.simulated_s, logged, decision)

    def _end_codecs(self, step: int) -> tuple[Mapping[str, float], Decision]:
        """Ends the codecs' step, begun in `step`, unless a checkpoint has done so: all of the mean has
        arrived. What they decide is known when the mean is taken."""
        self._ended = self._ended or end_codecs(self._world, self._codecs, step + self._delay)
        return self._ended

    def _sends(self, step: int) -> bool:
        return step >= 0 and (step + 1) % self._every == 0

    async def _step_of_rank(
        self, step: int, batches: Sequence[Batch], rate: float, measured: bool, rank_step: RankStep
    ) -> RankOutcome:
        self._own.load(rank_step.rank)
        with rank_step.compute("forward, backward, update"):
            loss = self._forward_backward(step, batches, rank_step.rank)
            norm = float(self._updater.apply(rate))
            skipped = not math.isfinite(norm)
        change = None
        if self._sends(step):
            self._send(step, rank_step)
        if self._takes_mean:
            change = await self._take_mean(rank_step, measured)
        elif measured:
            own = self._flat() - self._mean
            change = MeasuredBucket(partial(torch.clone, own), own)
        return RankOutcome(loss, norm, skipped, change)

    def _send(self, step: int, rank_step: RankStep) -> None:
        """Starts to take the mean of what the ranks have changed."""
        rank, codec = rank_step.rank, self._codecs[rank_step.rank]
        self._own.load(rank)
        this_round = Round(step, self._layout, rank, self._world.size, self._setup.seed)
        change = self._flat() - self._mean
        mean: Started[Tensor] = rank_step.start(
            lambda x: synchronization(codec, x, this_round, self._setup.check_hashes),
            change.clone(),
            Submission(
                buffers="weights",
                coordinates=self._layout.numel,
                in_turn=codec.traits.uses_backend,
                is_own=True,
                has_one_result=True,
            ),
        )
        self._sent[rank] = Sent(change, mean)

    async def _take_mean(self, rank_step: RankStep, measured: bool) -> MeasuredBucket | None:
        """Makes this rank's weights the mean of all ranks', and what it has changed since it sent its own."""
        rank = rank_step.rank
        sent = self._sent.pop(rank)
        since = self._flat() - self._mean - sent.change
        mean = await sent.mean
        self._own.load(rank)  # others may have taken their turns meanwhile
        with rank_step.compute("take the mean"):
            rank_step.replicated(partial(self._mean.add_, mean))
            self._set(self._mean + since)
        return MeasuredBucket(partial(torch.clone, sent.change), mean) if measured else None

    def _flat(self) -> Tensor:
        """The weights that are in place, one after another."""
        return torch.cat([weight.detach().reshape(-1) for weight in self._weights.values()])

    def _set(self, flat: Tensor) -> None:
        sizes = [weight.numel() for weight in self._weights.values()]
        for weight, values in zip(self._weights.values(), torch.split(flat, sizes), strict=True):
            weight.data.copy_(values.view_as(weight))

    def gradient_error(self) -> GradientError:
        return gradient_error(self._world, self._copies) if self._takes_mean else GradientError(0.0, 0.0)

    def raw_gradients(self) -> Tensor:
        """The changes since the last mean, of all ranks."""
        return gather_raw(self._world, self._copies)

    def replica(self, rank: int) -> int:
        return rank

    def group(self, rank: int) -> int:
        return 0

    def layout(self, rank: int) -> tuple[Layout, ...]:
        return (self._layout,)

    def finish(self) -> None:
        """The model is the last mean that was taken; one on its way stays so, also in checkpoints."""

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        return evaluate(self.whole_model(), objective, self._world, micro_batch)

    def whole_model(self) -> nn.Module:
        self._own.park()
        self._set(self._mean)
        return self._model

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {name: {**own, "mean": self._mean} for name, own in self._parts()}

    def _parts(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        means = {rank: sent.mean.result() for rank, sent in self._sent.items()}  # it may be on its way
        for rank, codec in self._codecs.items():
            if rank in self._sent:  # a codec's state is whole when its step has ended
                ended = json.dumps(self._end_codecs(self._sent[rank].mean.place.step)).encode()
            self._own.load(rank)
            own = {f"local/{key}": value.detach().clone() for key, value in self._local_state().items()}
            own |= {f"codec/{key}": value for key, value in codec.state_dict().items()}
            if rank in self._sent:
                own |= {"sent/step": torch.tensor(self._sent[rank].mean.place.step)}
                own |= {"sent/change": self._sent[rank].change, "sent/mean": means[rank]}
                own |= {"sent/ended": torch.tensor(list(ended), dtype=torch.uint8)}
            yield f"local-rank{rank}", own

    def load_state_dict(self, read: ReadPart) -> None:
        for rank, codec in self._codecs.items():
            saved = read(f"local-rank{rank}")
            self._own.load(rank)
            self._mean.copy_(saved["mean"])
            with torch.no_grad():
                for key, value in self._local_state().items():
                    value.copy_(saved[f"local/{key}"])
            begin = "codec/"
            codec.load_state_dict({k.removeprefix(begin): v for k, v in saved.items() if k.startswith(begin)})
            if "sent/step" in saved:
                place = CollectivePlace(int(saved["sent/step"]), 0)
                mean = self._world.resumed(rank, place, saved["sent/mean"])
                self._sent[rank] = Sent(saved["sent/change"], mean)
                self._ended = json.loads(bytes(saved["sent/ended"].tolist()))


def supports(setup: ParallelSetup) -> str | None:
    """Any codec will do that synchronizes one bucket of all weights."""
    layout = Layout.flat(1 << 20, device=setup.device)
    return make_codec(**setup.codec).supports(setup.topology, setup.workers, layout)


def _kind(every: int, delay: int = 0) -> ParallelKind:
    def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Any:
        return LocalSGD(setup, model, accelerator, world, every=every, delay=delay)

    return ParallelKind(build, supports)


every_2, every_4, every_16 = _kind(2), _kind(4), _kind(16)
delayed_2, delayed_4, delayed_16 = _kind(2, 1), _kind(4, 1), _kind(16, 1)
