"""A pipeline's parts of a checkpoint, and the whole model from all stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gradwire.codecs.interface import Codec
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, World
from gradwire.harness.models.stages import Stage, make_stage
from gradwire.harness.parallel.interface import ReadPart
from gradwire.harness.parallel.state import codec_part, codec_state, load_model, model_tensors
from gradwire.harness.parallel.update import Updater
from gradwire.harness.timing.trace.step import MEASURE


def stage_part(number: int) -> str:
    """The name of the part with the parameters of a stage."""
    return f"model-stage{number}"


def optimizer_part(number: int) -> str:
    """The name of the part with the moments of a stage's parameters."""
    return f"optimizer-stage{number}"


def pipeline_state(
    stages: Mapping[int, Stage],
    updaters: Mapping[int, Updater],
    codecs: Mapping[int, Codec],
    replicas: int,
) -> dict[str, dict[str, Tensor]]:
    """This process's parts: each stage once, written by its first rank, and what each rank's codec
    remembers."""
    parts = codec_state(codecs)
    for number, stage in stages.items():
        if number * replicas in codecs:
            parts[stage_part(number)] = model_tensors(stage.model)
            parts[optimizer_part(number)] = updaters[number].state_dict()
    return parts


def load_pipeline(
    read: ReadPart,
    stages: Mapping[int, Stage],
    updaters: Mapping[int, Updater],
    codecs: Mapping[int, Codec],
) -> None:
    """Loads what `pipeline_state` gave in all processes. Raises ValueError if it belongs to another model, or
    to other stages."""
    for number, stage in stages.items():
        load_model(read, stage.model, stage_part(number))
        updaters[number].load_state_dict(read(optimizer_part(number)))
    for rank, codec in codecs.items():
        codec.load_state_dict(read(codec_part(rank)))


def assembled(world: World, stages: Mapping[int, Stage], family: str, num_stages: int) -> nn.Module | None:
    """The whole model, on the CPU, in the process of rank 0, from the first replica's stages; all processes
    call it. None in the others."""
    whole, parts = None, list[Stage]()
    if 0 in world.ranks:
        model = stages[0].model
        whole = type(model)._from_config(model.config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        parts = [make_stage(whole, family, number, num_stages) for number in range(num_stages)]
    replicas = world.size // num_stages
    programs: dict[int, Collective[None]] = {}
    for rank in world.ranks:
        number, replica = divmod(rank, replicas)
        if replica:
            programs[rank] = _nothing
        elif number:
            programs[rank] = partial(_send_to_first, stages[number])
        else:
            programs[rank] = partial(_receive_all, stages[0], parts)
    world.run(programs)
    return whole


async def _nothing(comm: ScheduledCollectives) -> None:
    return None


async def _send_to_first(stage: Stage, comm: ScheduledCollectives) -> None:
    own = parameters_to_vector(stage.model.parameters()).detach()
    await comm.group("stage").in_phase(MEASURE).send(own, 0)


async def _receive_all(first: Stage, parts: Sequence[Stage], comm: ScheduledCollectives) -> None:
    """Fills `parts`, the stages of a whole model, from the first stage here and the others elsewhere."""
    own = parameters_to_vector(first.model.parameters()).detach()
    for number, part in enumerate(parts):
        values = own
        if number:
            values = own.new_empty(sum(parameter.numel() for parameter in part.model.parameters()))
            await comm.group("stage").in_phase(MEASURE).receive(values, number)
        vector_to_parameters(values.cpu(), part.model.parameters())
