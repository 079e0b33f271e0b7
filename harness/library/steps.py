"""The steps of a model's hooks, for `attach` and `shard_hooks`: their numbers, ends and failures."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable

from gradwire.codecs.interface import Codec
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.failures import SynchronizationError, again, in_words

NO_PASS = -1
"""PyTorch's number for the backward pass of a thread that is in none."""


class Process:
    """The process that an object was made in. A forked child lacks its threads and connections."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self) -> None:
        """Raises RuntimeError in a forked child."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this process was forked from a rank and has none of its connections; train in the rank "
                "itself, or start processes by spawn and attach there"
            )


class ModelSteps(ABC):
    """The steps of one model, whose gradients `codec` synchronizes over the ranks of `world`. A step is a
    backward pass.

    `call` names the function that has installed the hooks.
    """

    def __init__(self, world: ProcessWorld, codec: Codec, call: str) -> None:
        self.world, self.codec, self._call = world, codec, call
        self.step = 0
        self.step_open = False
        """True if a step has been synchronized and not been ended for the codec."""
        self.process = Process()
        self.failure: SynchronizationError | None = None
        """The failure that has ended the synchronization."""
        self.explain: Callable[[BaseException], str] = in_words
        """The text of an error that ends a pass."""

    @property
    def steps(self) -> int:
        """The number of steps synchronized so far."""
        return self.step + self.step_open

    @abstractmethod
    def end_step(self, skipped: bool = False) -> None:
        """Ends the step for the codec, if it is open and all its gradients are synchronized.

        `skipped`, the same on all ranks, states that the gradients are not used, so that the codec discards
        its changes of state. Otherwise the next pass ends the step normally.
        """

    @abstractmethod
    def restart(self, step: int) -> None:
        """Makes the next pass step number `step`, regardless of earlier steps."""

    def check_connected(self) -> None:
        """Raises RuntimeError once the connections have been closed."""
        if self.world.closed:
            raise RuntimeError(
                "the connections to the other ranks have been closed; call detach() on what "
                f"gradwire.{self._call} returned to train on without a codec"
            )

    def fail(
        self,
        error: BaseException,
        explain: Callable[[BaseException], str] | None = None,
        step: int | None = None,
    ) -> SynchronizationError:
        """Returns the error to raise because of `error`, which ends the synchronization in this step, by
        default the next one; `explain` may replace its text."""
        where = f"rank {self.world.rank}, step {self.steps if step is None else step}"
        failure = SynchronizationError(f"{where}: {(explain or self.explain)(error)}")
        failure.__cause__ = error
        self.failure = again(failure)
        return failure
