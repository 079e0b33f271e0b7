"""The contract between `codecs` and `harness`: a codec.

A codec turns the gradients of all workers into their (approximate) mean. It knows tensors and nothing else:
no process groups, no training loop, no configuration system. The harness hands it a `Round`, see `rounds`,
and its `Collectives`, see `collectives`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.collectives import Collectives, Kept
from gradwire.codecs.costs import Costs
from gradwire.codecs.fields import check_fields
from gradwire.codecs.rounds import Capture, Decision, Layout, Observation, Round
from gradwire.codecs.shards import Shard
from gradwire.codecs.step_memory import Memories
from gradwire.codecs.traits import About, Traits

__all__ = ["Capture", "Decision", "Layout", "Observation", "Round"]
"""Names of `rounds` that belong to the contract and are imported from here."""

Elapsed = Callable[[], float]
"""Returns the seconds since this rank's backward pass of the step began."""

GRADIENT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of gradients in training."""


class Codec(ABC):
    """A way to compute the mean of the workers' gradients over a network: the base class of all codecs.

    A codec is a dataclass whose fields are its settings. It must implement `synchronize`; everything else has
    a default. State that lasts from step to step belongs into its `memories`. Every codec keeps these rules:

    - All ranks get the same bits, and real processes the same as virtual ones. So shared decisions use
      integer arithmetic on reduced statistics, and random draws are functions of (seed, step, bucket,
      coordinate, rank), see `random`.
    - Message sizes are the same on all ranks: they follow from the layout, the settings and reduced
      statistics, never from a rank's own gradient.
    - `x` is left as it was; the result has its shape and dtype. A bucket may have one coordinate.
    - A restored state continues bit for bit. A skipped step leaves the state as it was before the step.
    - Zeros stay zeros; the relative error is the same at all magnitudes, from a root mean square of 2⁻¹²⁴ to
      one of 2¹¹⁶; non-finite values, and values that overflow, stay visible on all ranks; one round's vNMSE
      is below 0.95. A codec that breaks one of these rules, or needs larger gradients, declares this in its
      `traits`.
    """

    name: str
    """The name by which it is chosen and recorded; a field of the dataclass."""
    about: About = About()
    traits: Traits = Traits()

    @cached_property
    def memories(self) -> Memories:
        """State that lasts from step to step. It is saved in checkpoints, and a skipped step leaves it
        unchanged."""
        return Memories()

    def __post_init__(self) -> None:
        """Raises ValueError for a field whose value is not allowed."""
        check_fields(type(self), vars(self), "codec")

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        """None, or the reason why this codec cannot run there; by default only a dtype that training
        gradients do not have is refused. Called before anything starts."""
        if layout.dtype in GRADIENT_DTYPES:
            return None
        return f"codec={self.name} takes float32, bfloat16 and float16 gradients, got {layout.dtype}"

    def supports_stages(self, stages: int, *, refines: bool = False) -> str | None:
        """None, or the reason why this codec, with its settings, cannot run with a model in `stages` stages
        (1 without a pipeline), or without refinement of means. Called before anything starts."""
        if self.refines and not refines:
            return (
                f"codec={self.name} keeps refining a gradient until it is used; use parallel=blocks, which "
                "waits for that"
            )
        return None

    def refuses_buckets(self, layouts: Sequence[Layout], size: int, num_chunks: int) -> str | None:
        """None, or the reason why this codec would do nothing for a model with these buckets, synchronized
        among `size` ranks in so many chunks. Called once all of them are known, before the first step."""
        return None

    def refuses_capture(self, layout: Layout) -> str | None:
        """None, or the reason why `synchronize` of such a bucket cannot be captured in a CUDA graph.

        A codec that allows capture does the same work in every step, apart from values on the device: the
        host does not read results back, state stays at fixed addresses (`prepare_capture`), messages keep
        their sizes, random bits come from the key that kernels read from `Round.key_place`, and numbers that
        follow a decision from what `Capture.before_launch` writes. The same holds for `scatter`.
        """
        return f"codec={self.name} does not do the same in every step on the host"

    def prepare_capture(self, this_round: Round) -> None:
        """Called before a round is captured: gives the state that it reads and writes a place in memory that
        lasts, and its value there."""
        return

    def captured_form(self, this_round: Round) -> Hashable:
        """The numbers that the host fixes when `this_round` is captured, such as the sizes of its messages.
        In a step in which they are others the round is captured anew, so they should change seldom; they are
        the same on all ranks."""
        return None

    def captured_key(self, this_round: Round) -> Key:
        """The key that a captured round of this bucket reads from `Round.key_place` in the step of
        `this_round`."""
        return this_round.key

    @abstractmethod
    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """The mean of `x` over all ranks, bit-identical on each.

        `x` has shape (numel,) and is not written to. Called only for `this_round.size > 1`.
        """

    def observe(self, observations: Sequence[Observation]) -> None:
        """Receive the real or simulated times of this rank's step, for codecs with the trait `clock_driven`.
        Called before the step's `end_step` or `skip_step`."""
        return

    @property
    def scatters(self) -> bool:
        """True if the codec can stop half-way, with a shard of the mean on each rank: `shards` and
        `scatter`."""
        return False

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        """The coordinates of a bucket that each rank gets from `scatter`, the same in every round; every
        coordinate belongs to exactly one rank. `kept` is `Collectives.kept`, or that of the run's schedule.
        """
        raise ValueError(f"codec={self.name} has no scatter")

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """The mean over all ranks of this rank's shard of `x`: (shard,) float32, in the order of `shards`.

        It differs from the result of `synchronize` only by the last encoding, which a mean that stays on its
        rank does not need.
        """
        raise ValueError(f"codec={self.name} has no scatter")

    @property
    def refines(self) -> bool:
        """True if `refine` may send more bits of a bucket after all of a step's buckets are synchronized."""
        return False

    @property
    def boundary(self) -> int:
        """A more urgent message may interrupt one after any multiple of this number of bytes."""
        return 1 << 16

    async def refine(
        self, mean: Tensor, this_round: Round, comm: Collectives, elapsed: Elapsed | None = None
    ) -> Tensor:
        """A better mean of a bucket than `mean`, (numel,), the result of `synchronize`, which is not written
        to; bit-identical on all ranks.

        It may start after `end_step` and end after the step. It stops at the deadline that `elapsed` reports;
        without `elapsed` there is none. Not called for the buckets of a skipped step.
        """
        raise ValueError(f"codec={self.name} has nothing to refine")

    def end_step(self, step: int) -> Mapping[str, float]:
        """Called once all buckets of a step are synchronized; returns figures to log."""
        self.memories.end_step()
        return {}

    def activity(self) -> Mapping[str, float]:
        """The work of the codec's mechanism in the last step, so that an idle one shows in records: figures
        by the names of `ACTIVITY` in harness/timing/measure/training_metrics.py. Called after `end_step` or
        `skip_step`; the same on all ranks of a stage, and known without waiting for the device."""
        return {}

    def skip_step(self, step: int) -> Mapping[str, float]:
        """Called on all ranks instead of `end_step` if the step's means are not used, because they are not
        finite or because the user skips the step.

        Memories return to their values before the step, because none of the step's means was applied.
        """
        self.memories.skip_step()
        return self.end_step(step)

    def take_back(self, names: Collection[str]) -> None:
        """Called on all ranks before `end_step` with the parameters whose means are not applied in this step
        because no rank used them. The codec restores their memories, so that it still sends their residuals
        later."""
        self.memories.take_back(names)

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's state between two steps, keyed by parameter name, or by `Layout.key` of a bucket."""
        return self.memories.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state by one that `state_dict` returned. Raises ValueError for any other."""
        if rest := ", ".join(sorted(self.memories.load(state))):
            if not self.memories:
                raise ValueError(f"{type(self).__name__} has no state, got {rest}")
            known = ", ".join(f"{prefix}…" for prefix in self.memories)
            raise ValueError(f"the state of codec={self.name} has {known}, got {rest}")

    def costs(self, workers: int) -> Costs | None:
        """Costs of the codec's steps among `workers`, see `costs`; None if `task=bench` measures none of its
        operations."""
        return None


@runtime_checkable
class ChoosesWidths(Protocol):
    """A codec that gives each super-group of 256 coordinates a number of bits."""

    @abstractmethod
    async def super_group_widths(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """Bits per coordinate that `synchronize` gives the super-groups of `x`: (super-groups,) int64."""
        ...
