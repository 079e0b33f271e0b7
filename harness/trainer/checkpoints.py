"""What a checkpoint of a run holds, written and read back: the parallelism's parts, clocks and what is in
flight on them, and byte counters."""

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
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.timing.measure.clock import TrainingClock
from gradwire.harness.timing.trace.step import COUNTED_PHASES
from gradwire.harness.trainer.parts import Parts
from gradwire.harness.trainer.settings import RunConfig


class Checkpointer:
    """Saves and resumes one run; data order, dropout and learning rate follow from the step alone."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        parts: Parts,
        clock: TrainingClock,
        writer: RunWriter | None,
    ) -> None:
        self._keep = config.train.keep_checkpoints
        owner = Attempts.read(directory)
        self.run = run_id(config) if owner is None else owner.config_hash
        """The id of the run that the checkpoints belong to, as it began: files it depends on may change."""
        self._directory, self._clock, self._writer = directory, clock, writer
        self._world, self._parallelism = parts.world, parts.parallelism
        description = json.dumps(parts.data.description, sort_keys=True)
        self._data_hash = hashlib.sha256(description.encode()).hexdigest()[:16]

    def save(self, done: int, layout_hash: str, wall_time_s: float, *, keep_all: bool = False) -> None:
        """Saves a checkpoint after `done` steps: all ranks write their parts, then rank 0 seals it.

        `layout_hash` identifies the buckets of all ranks. The oldest checkpoint kept is replaced, unless all
        are to be kept.
        """
        rows = {} if self._writer is None else self._writer.flush()
        parts = {**self._parallelism.state_dict(), **self._world.state_dict()}
        num_files = write_files(self._directory, done, parts)
        # A process counts its files once, with the first of its ranks.
        counts = {rank: num_files if rank == self._world.ranks[0] else 0 for rank in self._world.ranks}
        gathered = self._world.gather({rank: [self._clock.seconds, counts[rank]] for rank in counts})
        sent = bytes_by_phase(self._world)
        if self._writer is None:
            return
        state = CheckpointState(
            step=done,
            layout_hash=layout_hash,
            data_hash=self._data_hash,
            train_time_s=[seconds for seconds, _ in gathered],
            wall_time_s=wall_time_s,
            bytes_by_phase=sent,
            run_id=self.run,
            rows=rows,
        )
        keep = None if keep_all else self._keep
        seal(self._directory, state, int(sum(count for _, count in gathered)), keep)

    def resume(self, checkpoint: CheckpointReader, layout_hash: str) -> CheckpointState:
        """Loads the state of a checkpoint, after warm-up and before the clock starts.

        Raises RuntimeError if the buckets differ (codec state and randomness belong to them), or the data.
        """
        state = self._fitting(checkpoint, layout_hash)
        if len(state.train_time_s) != self._world.size:
            raise RuntimeError(
                f"{checkpoint.path} is of {len(state.train_time_s)} ranks, this run has {self._world.size}; "
                "resume=never starts over"
            )
        read = partial(checkpoint.part, device=self._world.device)
        self._parallelism.load_state_dict(read)
        self._world.load_state_dict(read)
        self._clock.resume(state.train_time_s[self._world.ranks[0]])
        for rank in self._world.ranks:
            self._world.traffic[rank].by_phase.update(state.bytes_by_phase[rank])
        return state

    def start_from(self, path: Path, layout_hash: str) -> int:
        """Loads what another run, with any number of ranks, has trained; returns how many steps it had done.

        Its clocks, bytes and rows stay its own. Raises RuntimeError as `resume` does, and ValueError for a
        checkpoint that this number of ranks cannot load.
        """
        checkpoint = CheckpointReader(path.expanduser())
        step = self._fitting(checkpoint, layout_hash).step
        self._parallelism.load_state_dict(partial(checkpoint.part, device=self._world.device))
        return step

    def _fitting(self, checkpoint: CheckpointReader, layout_hash: str) -> CheckpointState:
        """The state of a checkpoint of the same buckets and data."""
        state = checkpoint.state
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
    """What each rank has sent so far, in rank order, on every rank."""
    rows = {rank: [float(world.traffic[rank].by_phase[p]) for p in COUNTED_PHASES] for rank in world.ranks}
    return [
        {phase: int(count) for phase, count in zip(COUNTED_PHASES, row, strict=True)}
        for row in world.gather(rows)
    ]
