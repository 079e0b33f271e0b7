"""Checkpoints by parameter, which can be loaded by a different number of ranks than wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Codec
from gradwire.codecs.shards import Stretches
from gradwire.harness.parallel.interface import ReadPart
from gradwire.harness.parallel.sharded.shards import MOMENTS, STEP, Piece, ShardOptimizer
from gradwire.harness.parallel.state import MODEL, codec_part, codec_state, load_model, model_tensors

MAIN = "main"


def shard_part(rank: int) -> str:
    """The name of the part with the main weights and moments of `rank`."""
    return f"shard-rank{rank}"


def sharded_state(
    model: nn.Module, optimizers: Mapping[int, ShardOptimizer], codecs: Mapping[int, Codec], *, has_main: bool
) -> dict[str, dict[str, Tensor]]:
    """This process's parts: the model once, each rank's shard by parameter, and the state of its codec.

    A piece of a parameter has the key `<field>/<parameter>/<start>:<length>:<stride>:<count>`, which names
    the parameter's coordinates that it holds.
    """
    parts = codec_state(codecs)
    for rank, own in optimizers.items():
        parts[shard_part(rank)] = dict(_tensors(own, has_main=has_main))
    return parts if 0 not in codecs else parts | {MODEL: model_tensors(model)}


def _tensors(own: ShardOptimizer, *, has_main: bool) -> Iterator[tuple[str, Tensor]]:
    yield STEP, torch.tensor([own.num_steps], device="cpu")
    for number in range(len(own.shards)):
        fields = own.moments(number) | ({MAIN: own.shards[number]} if has_main else {})
        for of, piece in own.pieces():
            if of == number:
                for field, values in fields.items():
                    yield _key(field, piece), values[piece.place].clone()


def _key(field: str, piece: Piece) -> str:
    return f"{field}/{piece.name}/{':'.join(map(str, astuple(piece.run)))}"


def load_sharded(
    read: ReadPart,
    model: nn.Module,
    optimizers: Mapping[int, ShardOptimizer],
    codecs: Mapping[int, Codec],
    size: int,
    *,
    has_main: bool,
) -> None:
    """Loads the results of `sharded_state` from all processes, which may have had another number of ranks
    than `size`.

    Raises ValueError if they belong to another model, or, for codecs with state, to another number of ranks.
    """
    load_model(read, model)
    fields = (*MOMENTS, MAIN) if has_main else MOMENTS
    loads = {rank: _Load(own, fields) for rank, own in optimizers.items()}
    written = 0
    while saved := read(shard_part(written)):
        for load in loads.values():
            load.add(saved)
        written += 1
    for load in loads.values():
        load.finish()
    if written != size:
        remembering = [rank for rank in range(written) if read(codec_part(rank))]
        if remembering:
            raise ValueError(
                f"the checkpoint is of {written} ranks whose codecs have their own state, which "
                f"{size} ranks cannot share; use cluster.workers={written}"
            )
        return
    for rank, codec in codecs.items():
        codec.load_state_dict(read(codec_part(rank)))


class _Load:
    """One rank's shard, assembled from the pieces of all saved shards."""

    def __init__(self, own: ShardOptimizer, fields: Sequence[str]) -> None:
        self._own = own
        self._values = [{field: torch.empty_like(shard) for field in fields} for shard in own.shards]
        self._missing = [torch.ones_like(shard, dtype=torch.bool) for shard in own.shards]
        self._num_steps = 0

    def add(self, saved: Mapping[str, Tensor]) -> None:
        """Adds the saved pieces of one rank."""
        self._num_steps = int(saved[STEP])
        there = dict[str, list[Stretches]]()
        for key in saved:
            field, _, rest = key.partition("/")
            if field == MOMENTS[0]:
                name, _, numbers = rest.rpartition("/")
                there.setdefault(name, []).append(Stretches(*map(int, numbers.split(":"))))
        for number, piece in self._own.pieces():
            if piece.name not in there:
                continue
            if piece.run in there[piece.name]:
                self._take(number, piece.place, {f: saved[_key(f, piece)] for f in self._values[number]})
            else:
                self._assemble(number, piece, there[piece.name], saved)

    def _take(self, number: int, place: slice, found: Mapping[str, Tensor]) -> None:
        for field, values in found.items():
            self._values[number][field][place] = values
        self._missing[number][place] = False

    def _assemble(
        self, number: int, piece: Piece, runs: Sequence[Stretches], saved: Mapping[str, Tensor]
    ) -> None:
        """Copies the coordinates of a piece that are among those of `runs`."""
        numel = max(run.start + (run.count - 1) * run.stride + run.length for run in (piece.run, *runs))
        place, missing = piece.place, self._missing[number]
        for field, values in self._values[number].items():
            whole = torch.zeros(numel, device=values.device)
            covered = torch.zeros(numel, dtype=torch.bool, device=values.device)
            for run in runs:
                of_run = saved[_key(field, piece._replace(run=run))]
                run.stretches(whole).copy_(of_run.view(run.count, run.length))
                run.stretches(covered).fill_(True)
            wanted = piece.run.stretches(covered).reshape(-1)
            values[place] = torch.where(wanted, piece.run.stretches(whole).reshape(-1), values[place])
        missing[place] &= ~wanted

    def finish(self) -> None:
        """Passes the assembled shard to the optimizer. Raises ValueError if something is missing."""
        rank = self._own.rank
        if any(bool(missing.any()) for missing in self._missing):
            raise ValueError(f"the checkpoint belongs to another model: it lacks some weights of rank {rank}")
        for number, values in enumerate(self._values):
            if MAIN in values:
                self._own.shards[number].copy_(values.pop(MAIN))
            self._own.load_moments(number, values, self._num_steps)
