"""What `shard_hooks` returns: the weights and gradients of one sharded model, until `detach`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec, Decision
from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.failures import again, bare
from gradwire.harness.library.modes import in_no_mode
from gradwire.harness.library.shard_modules import ShardedModule
from gradwire.harness.library.shard_replicas import MeshAgreement
from gradwire.harness.library.shard_state import SavedShards
from gradwire.harness.library.shard_step import ShardStep


class ShardSynchronizer:
    """Gathers a sharded model's weights and scatters its gradients through codecs until `detach()`.

        with gradwire.shard_hooks(model, codec="all_to_all", weights="qwd") as synchronizer:
            train(model)
            print(synchronizer.bytes_sent)

    Only `shard_hooks` makes one. Call `state_dict`, `load_state_dict` and `skip_step` on all ranks.
    """

    codec: Codec
    """The codec of gradients, with the options it was given."""
    world: ProcessWorld
    """The connections to the other ranks."""

    def __init__(self, step: ShardStep, agreement: MeshAgreement, description: Statement) -> None:
        from gradwire.harness.library.shard_comms import GradientScatter, ReplicaAverage, WeightGather

        self.codec, self.world = step.codec, step.world
        self._step, self._agreement, self._description = step, agreement, description
        step.explain = partial(agreement.explained, 0)
        step.explain_replicas = partial(agreement.explained, -1)
        self._before: Sequence[tuple[ShardedModule, tuple[Any, Any, Any]]] = [
            (
                each,
                each.install(
                    WeightGather(step, each),
                    GradientScatter(step, each),
                    None if each.replicas is None else ReplicaAverage(step, each, each.replicas),
                ),
            )
            for each in step.modules
        ]
        self._between = step.replicas if step.replicas and step.replicas.codec is not step.codec else None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ShardSynchronizer cannot be pickled or copied, it holds connections; save its state_dict(), "
            "and load that into what a new shard_hooks() returns"
        )

    @property
    def attached(self) -> bool:
        """Whether weights and gradients still go through the codecs."""
        return not self.world.closed

    @property
    def step(self) -> int:
        """The number of backward passes synchronized so far, including those before a loaded state."""
        return self._step.steps

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank has sent for gradients and weights since the hooks were set."""
        return sum(world.traffic[world.rank].total for world in self._step.worlds)

    @property
    def decision(self) -> Decision:
        """What the codec has decided for the latest step, the same on all ranks: see `Synchronizer`."""
        return decision_of(self.codec)

    @in_no_mode
    def skip_step(self) -> None:
        """Says that the last backward pass's gradients are not used: a codec with state takes back what it
        has learned from them. Call it on all ranks, before the next pass and before `state_dict()`.

        Raises RuntimeError if there is no such pass, and TimeoutError naming the ranks that have not called
        it. They and this rank then raise SynchronizationError in their next pass.
        """
        self._check()
        if not self._step.step_open:
            raise RuntimeError("skip_step(): no backward pass was synchronized since the last step ended")
        try:
            self._agreement.agree({"step": str(self.step)}, "skip_step()")
        except (ValueError, OSError) as error:  # TimeoutError and ConnectionError among them
            self._step.fail(error)
            raise
        self._step.end_step(skipped=True)

    @in_no_mode
    def state_dict(self) -> dict[str, Tensor]:
        """Returns everything this rank needs to resume exactly, beside its own part of the model's and the
        optimizer's states: CPU tensors, keyed by strings.

        Call it between two steps, on every rank: each has a state of its own. It holds what the codec
        remembers, the step, and with `weights="qwd"` this rank's part of the weights that all ranks hold.
        """
        self._check()
        step, rank = self._step, self.world.rank
        step.end_step()
        weights, sent = dict[int, Tensor](), dict[int, Tensor]()
        for number, own in enumerate(step.weights):
            if own.whole is not None:
                weights[number] = own.whole.chunk(self.world.size)[rank]
                if own.sent is not None:
                    sent[number] = own.sent
        between = {} if self._between is None else self._between.codec.state_dict()
        saved = SavedShards(step.step, self.codec.state_dict(), weights, sent, dict(between))
        return saved.pack(self._place, self._description)

    @in_no_mode
    def load_state_dict(
        self, state: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]], *, strict: bool = True
    ) -> None:
        """Resumes from what `state_dict` returned on this rank, here or in another process.

        Call it on all ranks, after `shard_hooks` and before the next forward pass; as many ranks as there
        were. With `strict` the settings that change results must be those it was saved with. `state` may be a
        function that reads it: the other ranks are told if that fails.

        Raises ValueError on every rank, naming the rank and the difference, for the state of another model,
        rank or codec, and for one that cannot be read; nothing has changed then. Raises TimeoutError naming
        ranks that do not call it.
        """
        self._check()
        codecs = [self.codec, *([] if self._between is None else [self._between.codec])]
        before = [{key: value.clone() for key, value in each.state_dict().items()} for each in codecs]
        try:
            given = state() if callable(state) else state
            saved = SavedShards.unpack(given, self._place, self._description, strict)
            saved.check_finite()
            _load_codecs(codecs, [saved.codec, saved.replicas], before)
        except Exception as error:  # whatever it is: the others wait to be told
            words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            self._agreement.refuse(words)
            raise ValueError(f"load_state_dict(): {words}") from error
        try:
            self._agreement.agree(saved.common(), "load_state_dict()")
        except BaseException:
            _load_codecs(codecs, before, before)
            raise
        device = self.world.device
        for number, own in enumerate(self._step.weights):
            own.whole = own.sent = None
            if number in saved.weights:
                part = saved.weights[number].to(device)
                own.whole = torch.cat(self._step.run(_gathering(part)))
            if number in saved.sent:
                own.sent = saved.sent[number].to(device)
        self._step.restart(saved.step)

    @property
    def _place(self) -> int:
        """This rank's number among those of all replicas, a replica's ranks one after another."""
        between = self._between
        return self.world.rank + (0 if between is None else between.world.rank * self.world.size)

    @in_no_mode
    def detach(self) -> None:
        """Gives the modules back the communication that they had. Does nothing a second time."""
        from gradwire.harness.library.shard_comms import ReplicaAverage

        self._step.process.check()
        try:
            for world in self._step.worlds:
                world.close()
        finally:
            for module, before in self._before:
                *_, replicas = module.install(*before)
                if isinstance(replicas, ReplicaAverage):
                    replicas.forget()
            self._before = ()

    close = detach

    def __enter__(self) -> ShardSynchronizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def raise_error(self) -> None:
        """Raises the error that ended the synchronization, as it was raised on a communication thread, if
        there is one. It is the cause of what a pass has raised."""
        error, failure = self.world.error, self._step.failure
        if error is not None:
            raise bare(error).with_traceback(error.__traceback__)
        if failure is not None:
            raise bare(failure.__cause__ or failure)

    def _check(self) -> None:
        self._step.process.check()
        if self.world.closed:
            raise RuntimeError("the hooks have been detached; call gradwire.shard_hooks() again")
        if self._step.failure is not None:
            raise again(self._step.failure)


def _load_codecs(
    codecs: Sequence[Codec], states: Sequence[Mapping[str, Tensor]], before: Sequence[Mapping[str, Tensor]]
) -> None:
    """Gives each codec its state, or all of them what they had `before`."""
    try:
        for codec, state in zip(codecs, states, strict=False):
            codec.load_state_dict(state)
    except BaseException:
        for codec, state in zip(codecs, before, strict=True):
            codec.load_state_dict(state)
        raise


def _gathering(own: Tensor) -> Collective[list[Tensor]]:
    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        return await comm.all_gather(own)

    return run
