"""The weights and gradients of one sharded model, which `shard_hooks` returns, until `detach`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec
from gradwire.harness.comm.collective.collectives import all_gathering
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.attached import Attached
from gradwire.harness.library.calls import in_no_mode
from gradwire.harness.library.failures import MeshAgreement
from gradwire.harness.library.saved import SavedShards
from gradwire.harness.library.shard_modules import WHAT, ShardedModule
from gradwire.harness.library.shard_step import ShardStep


class ShardSynchronizer(Attached):
    """Gathers a sharded model's weights and scatters its gradients through codecs until `detach()`.

    with gradwire.shard_hooks(model, codec="all_to_all", weights="qwd") as synchronizer:
            train(model)
            print(synchronizer.bytes_sent)

    Created only by `shard_hooks`. Call `state_dict`, `load_state_dict` and `skip_step` on all ranks.
    """

    _call = WHAT

    def __init__(self, step: ShardStep, agreement: MeshAgreement, description: Statement) -> None:
        from gradwire.harness.library.shard_comms import GradientScatter, ReplicaAverage, WeightGather

        super().__init__(step, agreement, description)
        self._step = step
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

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent for gradients and weights since the hooks were installed."""
        return sum(world.traffic[world.rank].total for world in self._worlds)

    @in_no_mode
    def state_dict(self) -> dict[str, Tensor]:
        """Returns everything that this rank needs to resume exactly, apart from its part of the model's and
        the optimizer's states: CPU tensors, keyed by strings.

        Call it between two steps, on every rank: each rank has its own state. It holds the codec's state, the
        step, and with `weights="qwd"` this rank's part of the weights that all ranks hold.
        """
        self._require_attached()
        step, rank = self._step, self.world.rank
        step.end_step()
        weights, sent = dict[int, Tensor](), dict[int, Tensor]()
        for number, own in enumerate(step.weights):
            if own.whole is not None:
                weights[number] = own.whole.chunk(self.world.size)[rank]
                if own.sent is not None and not own.awaits_update:
                    sent[number] = own.sent
        between = {} if self._between is None else self._between.codec.state_dict()
        saved = SavedShards(step.step, self.codec.state_dict(), weights, sent, dict(between))
        return saved.pack(self._place, self._description)

    @property
    def _worlds(self) -> Sequence[ProcessWorld]:
        return self._step.worlds

    def _codecs(self) -> list[Codec]:
        return [self.codec] if self._between is None else [self.codec, self._between.codec]

    def _unpack(self, state: Mapping[str, Tensor], strict: bool) -> SavedShards:
        saved = SavedShards.unpack(state, self._place, self._description, strict)
        saved.check()
        return saved

    def _take(self, saved: SavedShards) -> None:
        device = self.world.device
        for number, own in enumerate(self._step.weights):
            whole, sent = None, saved.sent.get(number)
            if number in saved.weights:
                part = saved.weights[number].to(device)
                whole = torch.cat(self._step.run(all_gathering(part)))
            own.restore(whole, None if sent is None else sent.to(device))

    @property
    def _place(self) -> int:
        """This rank's number among the ranks of all replicas, counted replica by replica."""
        between = self._between
        return self.world.rank + (0 if between is None else between.world.rank * self.world.size)

    @in_no_mode
    def detach(self) -> None:
        """Restores the modules' previous communication. Does nothing if called again."""
        from gradwire.harness.library.shard_comms import ReplicaAverage

        self._process.check()
        try:
            for world in self._worlds:
                world.close()
        finally:
            for module, before in self._before:
                *_, replicas = module.install(*before)
                if isinstance(replicas, ReplicaAverage):
                    replicas.forget()
            self._before = ()
