"""The common part of what `attach` and `shard_hooks` return: a model's state, steps and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from torch import Tensor

from gradwire.codecs.interface import Codec, Decision
from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.comm.world.process_captured import CapturedBuckets, joined
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.calls import in_no_mode
from gradwire.harness.library.failures import MeshAgreement, again, bare
from gradwire.harness.library.saved import Saved
from gradwire.harness.library.steps import ModelSteps


class Attached(ABC):
    """A model whose gradients go through a codec until `detach()`.

    `_call` names the function that created it. `state_dict`, `load_state_dict` and `skip_step` must be called
    on all ranks.
    """

    codec: Codec
    """The codec of gradients, with the options it was given."""
    world: ProcessWorld
    """The connections to the other ranks."""
    _call: str

    def __init__(
        self,
        steps: ModelSteps,
        agreement: MeshAgreement,
        description: Statement,
    ) -> None:
        self.codec, self.world, self._process = steps.codec, steps.world, steps.process
        self._steps, self._agreement, self._description = steps, agreement, description

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied, it holds connections; save its "
            f"state_dict(), and load it into the result of a new {self._call}"
        )

    @property
    def attached(self) -> bool:
        """True while gradients go through the codec."""
        return not self.world.closed

    @property
    def step(self) -> int:
        """The number of backward passes synchronized so far, including those before a loaded state. Random
        keys depend on it."""
        return self._steps.steps

    @property
    @abstractmethod
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent for synchronization since it was attached, counted by the
        transport.
        """

    @property
    def decision(self) -> Decision:
        """The codec's decision for the latest step, the same on all ranks: numbers and lists of numbers, by
        name. Before the first step it is the decision for the first. Empty for a codec that makes no
        decisions."""
        return decision_of(self.codec)

    @property
    def captured(self) -> CapturedBuckets | None:
        """The number of buckets and weights of a step, of those whose rounds are captured in CUDA graphs, and
        why the others' are not. None if none are to be: on CPUs, and with `graphs="never"`."""
        found = [world.captured_buckets() for world in self._worlds]
        return joined(each for each in found if each is not None)

    @property
    def _worlds(self) -> Sequence[ProcessWorld]:
        return [self.world]

    @in_no_mode
    def skip_step(self) -> None:
        """Declares that the last backward pass's gradients are not used: a codec with state discards what it
        has stored of them.

        Call it on all ranks, before the next pass and before `state_dict()`; this is checked through the
        process group's store. Raises RuntimeError if there is no such pass, and TimeoutError naming the ranks
        that have not called it within `timeout_s`. In that case all ranks raise SynchronizationError in their
        next pass, because codecs whose states belong to different steps would give ranks different gradients.
        """
        self._require_attached()
        if not self._steps.step_open:
            raise RuntimeError("skip_step(): no backward pass was synchronized since the last step ended")
        try:
            self._agreement.agree({"step": str(self.step)}, "skip_step()")
        except (ValueError, OSError) as error:  # TimeoutError and ConnectionError among them
            self._steps.fail(error)
            raise
        self._steps.end_step(skipped=True)

    @in_no_mode
    def load_state_dict(
        self, state: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]], *, strict: bool = True
    ) -> None:
        """Resumes from what `state_dict` returned on this rank, here or in another process.

        Call it on all ranks, after attaching and before the next pass, with the same number of ranks as in
        the saved run. The script loads the model's and the optimizer's states itself. DDP's buckets
        immediately become those of the saved run; no warm-up is needed. With `strict` the settings that
        affect results must equal the saved ones. `state` may be a function that reads the state: if it fails
        on one rank, all ranks raise.

        Raises ValueError on every rank, naming the rank and the difference, for the state of another model,
        rank or codec, and for one that cannot be read; nothing has changed then. Raises TimeoutError naming
        ranks that do not call it.
        """
        self._require_attached()
        codecs = self._codecs()
        before = [{key: value.clone() for key, value in each.state_dict().items()} for each in codecs]
        try:
            saved = self._unpack(state() if callable(state) else state, strict)
            _load_codecs(codecs, saved.codecs(), before)
        except Exception as error:  # whatever it is: the other ranks are waiting
            words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            self._agreement.refuse(words)
            raise ValueError(f"load_state_dict(): {words}") from error
        try:
            self._agreement.agree(saved.common(), "load_state_dict()")
            self._take(saved)
        except BaseException:
            _load_codecs(codecs, before, before)
            raise
        self._steps.restart(saved.step)

    @abstractmethod
    def _unpack(self, state: Any, strict: bool) -> Saved:
        """Checks a state for this rank; raises ValueError."""

    @abstractmethod
    def _take(self, saved: Any) -> None:
        """Restores the checked state apart from the codecs' own; all ranks agree on it."""

    def _codecs(self) -> list[Codec]:
        return [self.codec]

    @abstractmethod
    def detach(self) -> None:
        """Restores the model's own communication. Does nothing if called again."""

    def close(self) -> None:
        """Detaches the codec."""
        self.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def raise_error(self) -> None:
        """Raises the error that ended the synchronization, if there is one, as raised on a communication
        thread. It is the cause of the error that a pass has raised."""
        error, failure = self.world.error, self._steps.failure
        if error is not None:
            raise bare(error).with_traceback(error.__traceback__)
        if failure is not None:
            raise bare(failure.__cause__ or failure)

    def _require_attached(self) -> None:
        """Raises RuntimeError once detached, SynchronizationError after a failure."""
        self._process.check()
        failure = self._steps.failure
        if self.world.closed:
            raise RuntimeError(f"the synchronizer has been detached; call gradwire.{self._call} again")
        if failure is not None:
            raise again(failure)


def _load_codecs(
    codecs: Sequence[Codec], states: Sequence[Mapping[str, Tensor]], before: Sequence[Mapping[str, Tensor]]
) -> None:
    """Loads each codec's state, or, if one fails, restores all to the states `before`."""
    try:
        for codec, state in zip(codecs, states, strict=False):
            codec.load_state_dict(state)
    except BaseException:
        for codec, state in zip(codecs, before, strict=True):
            codec.load_state_dict(state)
        raise
