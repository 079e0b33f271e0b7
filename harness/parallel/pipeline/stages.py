"""The stages hosted by this process: their buckets, updates and parts of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gradwire.codecs.interface import Codec
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, World
from gradwire.harness.models.stages import Stage, make_stage
from gradwire.harness.parallel.accumulation import GradientBucket, Hooks, bucketed
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.interface import ParallelSetup, ReadPart
from gradwire.harness.parallel.state import codec_part, codec_state, load_model, model_tensors
from gradwire.harness.parallel.update import Updater, with_value
from gradwire.harness.timing.trace.step import MEASURE


class HostedStage:
    """A stage that ranks of this process hold: its parameters and optimizer exist once for all of them. Each
    rank has its own buckets, because the passes of several ranks interleave."""

    def __init__(
        self,
        stage: Stage,
        accelerator: Accelerator,
        setup: ParallelSetup,
        layouts: BucketLayouts,
        ranks: Sequence[int],
    ) -> None:
        self.stage = stage
        self.forward = accelerator.prepare_model(stage, evaluation_mode=True)
        self.parameters = {name: p for name, p in stage.named().items() if p.requires_grad}
        self.hooks, self.updater = Hooks(self.parameters), Updater(stage.model, setup.optimizer)
        sizes = {name: parameter.numel() for name, parameter in self.parameters.items()}
        # Gradients become ready in approximately this order.
        backwards = list(reversed(self.parameters))
        device = next(iter(self.parameters.values())).device
        self.layouts = tuple(
            layouts.named(names, torch.float32, device)
            for names in bucketed(backwards, sizes, setup.parallel.bucket_cap_mb)
        )
        self.buckets = {
            rank: [GradientBucket(each, torch.zeros(each.numel, device=device)) for each in self.layouts]
            for rank in ranks
        }

    def set_gradients(self, means: Sequence[Tensor], rank: int) -> None:
        """Sets views of the means in a rank's buckets as the parameters' gradients."""
        for bucket, mean in zip(self.buckets[rank], means, strict=True):
            for name, view in bucket.views(mean):
                self.parameters[name].grad = view

    def gradient(self, name: str) -> Tensor:
        """A parameter's gradient."""
        found = self.parameters[name].grad
        assert found is not None
        return found

    def squares(self, without: str | None) -> Tensor:
        """The sum of the squares of all gradients, (1,) float64; the parameter `without`, which another stage
        counts, is left out."""
        counted = [self.gradient(name) for name in self.parameters if name != without]
        return with_value(torch.nn.utils.get_total_norm(counted).double().square().view(1))


def stage_part(number: int) -> str:
    """The name of the checkpoint part with the parameters of a stage."""
    return f"model-stage{number}"


def optimizer_part(number: int) -> str:
    """The name of the checkpoint part with the moments of a stage's parameters."""
    return f"optimizer-stage{number}"


def pipeline_state(
    stages: Mapping[int, HostedStage], codecs: Mapping[int, Codec], replicas: int
) -> dict[str, dict[str, Tensor]]:
    """This process's parts of a checkpoint: each stage once, written by its first rank, and the state of each
    rank's codec."""
    parts = codec_state(codecs)
    for number, held in stages.items():
        if number * replicas in codecs:
            parts[stage_part(number)] = model_tensors(held.stage.model)
            parts[optimizer_part(number)] = held.updater.state_dict()
    return parts


def load_pipeline(read: ReadPart, stages: Mapping[int, HostedStage], codecs: Mapping[int, Codec]) -> None:
    """Loads the results of `pipeline_state` from all processes. Raises ValueError if they belong to another
    model or to different stages."""
    for number, held in stages.items():
        load_model(read, held.stage.model, stage_part(number))
        held.updater.load_state_dict(read(optimizer_part(number)))
    for rank, codec in codecs.items():
        codec.load_state_dict(read(codec_part(rank)))


def assembled(
    world: World, stages: Mapping[int, HostedStage], family: str, num_stages: int
) -> nn.Module | None:
    """The whole model, on the CPU, assembled from the first replica's stages in the process of rank 0; None
    in other processes. All processes must call it."""
    whole, parts = None, list[Stage]()
    if 0 in world.ranks:
        model = stages[0].stage.model
        whole = type(model)._from_config(model.config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        parts = [make_stage(whole, family, number, num_stages) for number in range(num_stages)]
    replicas = world.size // num_stages
    programs: dict[int, Collective[None]] = {}
    for rank in world.ranks:
        number, replica = divmod(rank, replicas)
        if replica:
            programs[rank] = _nothing
        elif number:
            programs[rank] = partial(_send_to_first, stages[number].stage)
        else:
            programs[rank] = partial(_receive_all, stages[0].stage, parts)
    world.run(programs)
    return whole


async def _nothing(comm: ScheduledCollectives) -> None:
    return None


async def _send_to_first(stage: Stage, comm: ScheduledCollectives) -> None:
    own = parameters_to_vector(stage.model.parameters()).detach()
    await comm.group("stage").in_phase(MEASURE).send(own, 0)


async def _receive_all(first: Stage, parts: Sequence[Stage], comm: ScheduledCollectives) -> None:
    """Fills `parts`, the stages of a whole model, with the first stage of this process and the stages
    received from others."""
    own = parameters_to_vector(first.model.parameters()).detach()
    for number, part in enumerate(parts):
        values = own
        if number:
            values = own.new_empty(sum(parameter.numel() for parameter in part.model.parameters()))
            await comm.group("stage").in_phase(MEASURE).receive(values, number)
        vector_to_parameters(values.cpu(), part.model.parameters())
