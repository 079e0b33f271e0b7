"""Checkpoints of a run, written and read: the parallelism's parts, clocks with the messages in flight on
them, and byte counters."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

from gradwire.harness.checkpoint.folder import CheckpointReader, CheckpointState
from gradwire.harness.checkpoint.write import seal, write_files
from gradwire.harness.comm.world.interface import World
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.identity import run_id
from gradwire.harness.timing.trace.step import COUNTED_PHASES
from gradwire.harness.trainer.state import TrainingState


class Checkpointer:
    """Saves and resumes one run. Data order, dropout and learning rate are functions of the step, so they
    need no state."""

    def __init__(self, state: TrainingState) -> None:
        self._state, self._train = state, state.config.train
        owner = Attempts.read(state.directory)
        self.run = run_id(state.config) if owner is None else owner.config_hash
        """The id of the run that the checkpoints belong to, as it began: files it depends on may change."""
        description = json.dumps(state.parts.data.description, sort_keys=True)
        self._data_hash = hashlib.sha256(description.encode()).hexdigest()[:16]

    def due(self, done: int) -> bool:
        """True if a checkpoint is to be saved after `done` steps."""
        every = self._train.checkpoint_every
        return every is not None and done % every == 0

    def save(self, done: int, *, keep_all: bool = False) -> None:
        """Saves a checkpoint after `done` steps: all ranks write their parts, then rank 0 seals it.

        It replaces the oldest checkpoint, unless all are to be kept.
        """
        world, writer, wall_time_s = self._state.world, self._state.writer, self._state.wall_time_s
        rows = {} if writer is None else writer.flush()
        parts = {**self._state.parallelism.state_dict(), **world.state_dict()}
        num_files = write_files(self._state.directory, done, parts)
        # A process's files are counted once, for its first rank.
        counts = {rank: num_files if rank == world.ranks[0] else 0 for rank in world.ranks}
        gathered = world.gather({rank: [self._state.clock.seconds, counts[rank]] for rank in counts})
        sent = bytes_by_phase(world)
        if writer is None:
            return
        saved = CheckpointState(
            step=done,
            layout_hash=self._state.layouts.hash,
            data_hash=self._data_hash,
            train_time_s=[seconds for seconds, _ in gathered],
            wall_time_s=wall_time_s,
            bytes_by_phase=sent,
            run_id=self.run,
            rows=rows,
        )
        keep = None if keep_all else self._train.keep_checkpoints
        num_files = int(sum(count for _, count in gathered))
        seal(self._state.directory, saved, num_files, keep)

    def resume(self, checkpoint: CheckpointReader) -> int:
        """Loads the state of a checkpoint, after warm-up and before the clock starts; returns the number of
        steps that were done.

        Raises RuntimeError if the buckets differ (codec state and randomness belong to them), or the data.
        """
        saved, world = self._fitting(checkpoint), self._state.world
        if len(saved.train_time_s) != world.size:
            raise RuntimeError(
                f"{checkpoint.path} is from a run with {len(saved.train_time_s)} ranks, "
                f"this run has {world.size}; resume=never starts over"
            )
        read = partial(checkpoint.part, device=world.device)
        self._state.parallelism.load_state_dict(read)
        world.load_state_dict(read)
        self._state.clock.resume(saved.train_time_s[world.ranks[0]])
        self._state.started -= saved.wall_time_s
        for rank in world.ranks:
            world.traffic[rank].by_phase.update(saved.bytes_by_phase[rank])
        return saved.step

    def start_from(self, path: Path) -> int:
        """Loads the trained state of another run, with any number of ranks; returns the number of steps it
        had done.

        Clocks, byte counts and rows are not taken over. Raises RuntimeError as `resume` does, and ValueError
        for a checkpoint that this number of ranks cannot load.
        """
        checkpoint = CheckpointReader(path.expanduser())
        step = self._fitting(checkpoint).step
        read = partial(checkpoint.part, device=self._state.world.device)
        self._state.parallelism.load_state_dict(read)
        return step

    def _fitting(self, checkpoint: CheckpointReader) -> CheckpointState:
        """The state of a checkpoint. Raises RuntimeError if it belongs to other buckets or data."""
        state, layout_hash = checkpoint.state, self._state.layouts.hash
        if state.layout_hash != layout_hash:
            raise RuntimeError(
                f"{checkpoint.path} has other buckets ({state.layout_hash}) than this run ({layout_hash}): "
                "another PyTorch may order them differently; resume=never starts over"
            )
        if state.data_hash != self._data_hash:
            raise RuntimeError(
                f"{checkpoint.path} was written while training on other data under the same name; bring it "
                "back (dataset.revision=, dataset.path=), or start over with resume=never"
            )
        return state


def bytes_by_phase(world: World) -> list[dict[str, int]]:
    """The bytes that each rank has sent so far, in rank order, on every rank."""
    rows = {rank: [float(world.traffic[rank].by_phase[p]) for p in COUNTED_PHASES] for rank in world.ranks}
    return [
        {phase: int(count) for phase, count in zip(COUNTED_PHASES, row, strict=True)}
        for row in world.gather(rows)
    ]
