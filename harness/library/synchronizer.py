"""The synchronization of one model, as `attach` returns it."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.interface import Layout
from gradwire.codecs.wrappers.decisions import Decisions
from gradwire.harness.library import ddp_internals
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.attached import Attached
from gradwire.harness.library.bucket_hook import BucketHook
from gradwire.harness.library.calls import in_no_mode
from gradwire.harness.library.ddp_internals import Buckets
from gradwire.harness.library.decisions import DecisionRecord
from gradwire.harness.library.failures import MeshAgreement, again
from gradwire.harness.library.parameters import ParameterCheck
from gradwire.harness.library.saved import SavedState
from gradwire.harness.parallel.buckets import parameter_names
from gradwire.harness.parallel.gradient_error import gradient_error


class Synchronizer(Attached):
    """Synchronizes a model's gradients through a codec until `detach()`. `gradwire.attach` returns it.

    with gradwire.attach(model, codec="dynamiq", bits=4) as synchronizer:
            train(model)
            print(synchronizer.bytes_sent)

    Created only by `attach`. Call `state_dict`, `load_state_dict` and `measure_vnmse` on all ranks.
    """

    _call = "attach()"

    def __init__(
        self,
        model: DistributedDataParallel,
        hook: BucketHook,
        agreement: MeshAgreement,
        description: Statement,
    ) -> None:
        super().__init__(hook, agreement, description)
        self._model = weakref.ref(model)  # which the model's own reducer leads to: no circle through C++
        self._hook = hook
        self._upcoming: Buckets | None = None
        self._last: Buckets | None = None
        self._seen: list[Layout] = []
        self._vnmse: float | None = None
        self._record: DecisionRecord | None = None
        self._detached = False
        self._check: ParameterCheck | None = None
        hook.on_end, hook.on_failure = self._pass_ended, self._pass_failed
        hook.unused, hook.divides_by_active = self._unused, self._divides_by_active
        hook.explain = partial(agreement.explained, 0)
        self._register(model)

    def _register(self, model: DistributedDataParallel) -> None:
        self._hook.delayed = model.static_graph and not ddp_internals.has_settled(model)
        model.register_comm_hook(None, self._hook.hook)
        reduced = ddp_internals.synchronized(model)
        self._reduced = tuple(reduced)
        if self._check is not None:
            self._check.remove()
        self._check = ParameterCheck(model, reduced, self._hook.fail_before_pass)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent for synchronization since it was attached, counted by the
        transport.
        """
        return self.world.traffic[self.world.rank].total

    @property
    def vnmse(self) -> float | None:
        """The error of the latest measured step: ‖mean − result‖² / ‖mean‖² over all coordinates. None before
        the first one, and if the gradients are zero or not finite."""
        return self._vnmse

    @in_no_mode
    def measure_vnmse(self) -> None:
        """Measures the next synchronized step: `vnmse` holds its error once its backward pass is over.

        Call it on all ranks; this is checked. The step needs memory for one more gradient, and an all-reduce
        in float64 whose bytes are not counted.
        """
        self._attached_model()
        self._agreement.agree({"step": str(self.step)}, "measure_vnmse()")
        self._hook.measured = True

    @in_no_mode
    def record_decisions(self, path: str | PathLike[str]) -> None:
        """Has rank 0 write the codec's decisions to `path`, one line per step, until `detach()`. `attach(…,
        decisions=path)` follows them.

        Call it on all ranks: before the first step with a file that does not exist, and when a run is
        resumed, after `load_state_dict`, with the same file. Raises ValueError on every rank if the codec
        makes no decisions, or if the file lacks decisions of earlier steps or holds those of a run with other
        settings.
        """
        self._attached_model()
        self._hook.end_step()
        record = None
        try:
            if not isinstance(self.codec, Decisions):
                raise ValueError(f"codec={self.codec.name} makes no decisions; leave it out")
            if self.world.rank == 0:
                record = DecisionRecord(Path(path), self._description, self.step)
        except (ValueError, OSError) as error:
            self._agreement.refuse(str(error))
            raise ValueError(f"record_decisions(): {error}") from error
        self._agreement.agree({"step": str(self.step)}, "record_decisions()")
        if record is not None:
            self._record, self._hook.on_decision = record, record.add

    @in_no_mode
    def state_dict(self) -> dict[str, Tensor]:
        """Returns everything this rank needs to resume exactly: CPU tensors for `torch.save` or safetensors,
        keyed by strings.

        Call it between two steps, on every rank: each rank has its own state. It holds the codec's state, the
        step, and DDP's buckets. Raises RuntimeError after the first step of a static graph, whose buckets are
        only settled in the second.
        """
        model = self._attached_model()
        self._hook.end_step()
        last, seen = self._last_buckets(), bool(self._hook.layouts)
        settled = ddp_internals.settle(model)
        if model.static_graph and seen and not ddp_internals.has_settled(model):
            raise RuntimeError(
                "state_dict(): with static_graph=True the second step settles the buckets; save after it"
            )
        upcoming = last
        if not seen:
            upcoming = self._upcoming
        if settled or (upcoming is None and ddp_internals.has_settled(model)):
            upcoming = ddp_internals.current_buckets(model)
        own = self.codec.state_dict()
        return SavedState(self.step, self._description, upcoming, last, own).pack(self.world.rank)

    def _unpack(self, state: Mapping[str, Tensor], strict: bool) -> SavedState:
        saved = SavedState.unpack(state, self.world.rank, self._description, strict)
        saved.check(parameter_names(self._attached_model().module))
        if self._record is not None:
            self._record.check(saved.step)
        return saved

    def _take(self, saved: SavedState) -> None:
        model, last = self._attached_model(), self._last_buckets()
        try:
            if saved.upcoming is None:
                ddp_internals.renew(model)
            else:
                ddp_internals.renew_settled(model, saved.upcoming)
        except BaseException:  # its buckets are neither the saved ones nor those before: begin anew
            ddp_internals.renew(model)
            self._upcoming, self._last = None, last
            raise
        finally:
            if not ddp_internals.has_hook(model):  # the reducer is a new one
                self._hook.layouts = []
                self._register(model)
                self.world.forget_buffers()  # captured rounds have read the buckets of the one before
        if saved.upcoming is not None and model.static_graph:
            self._hook.delayed = True
            self._hook.announce(self._layouts(model, saved.upcoming))
        self._upcoming, self._last = saved.upcoming, saved.last

    def _layouts(self, model: DistributedDataParallel, buckets: Buckets) -> list[Layout]:
        parameters = parameter_names(model.module)
        first = [parameters[bucket[0]] for bucket in buckets]
        return [
            self._hook.bucket_layouts.named(bucket, parameter.dtype, parameter.device)
            for bucket, parameter in zip(buckets, first, strict=True)
        ]

    def _last_buckets(self) -> Buckets | None:
        """The buckets of the latest synchronized pass, possibly from a loaded state."""
        if self._hook.layouts:
            return tuple(layout.names for layout in self._hook.layouts)
        return self._last

    @in_no_mode
    def detach(self) -> None:
        """Returns the model to plain DistributedDataParallel: no hook, and buckets that the next backward
        pass settles. Ends the threads. Does nothing if called again.

        Waits for collectives in flight, for at most `timeout_s`.
        """
        if self._detached:
            return
        self._process.check()
        self._detached = True
        if self._check is not None:
            self._check.remove()
        try:
            if self._record is not None and self._hook.failure is None:
                self._hook.end_step()  # what it decides is part of the record
        finally:
            self.world.close()
            model = self._model()
            if model is not None and torch.distributed.is_initialized():
                ddp_internals.renew(model)

    def _require_attached(self) -> None:
        self._process.check()
        if self._model() is None:
            raise RuntimeError(
                "the synchronizer's model no longer exists; keep the DistributedDataParallel model"
            )
        super()._require_attached()

    def _attached_model(self) -> DistributedDataParallel:
        self._require_attached()
        model = self._model()
        assert model is not None, "checked"
        return model

    def _unused(self) -> Collection[str]:
        """The parameters that no rank has used in the latest synchronized pass, as determined by DDP."""
        model = self._model()
        return (
            ()
            if model is None or self._hook.failure is not None
            else ddp_internals.unused(model, self._reduced)
        )

    def _divides_by_active(self) -> bool:
        return ddp_internals.divides_by_active(self._model())

    def _pass_ended(self) -> None:
        hook = self._hook
        if hook.measured:
            hook.measured = False
            self._vnmse = gradient_error(self.world, {self.world.rank: hook.copies()}).vnmse
        if self._seen != hook.layouts:  # DDP has settled its buckets: the old ones' buffers are free
            self._seen = list(hook.layouts)
            self.world.forget_buffers()

    def _pass_failed(self) -> None:
        model, failure = self._model(), self._hook.failure
        assert failure is not None
        if model is not None:
            ddp_internals.block(model, partial(again, failure))
