"""Error feedback around any hop-wise codec: the losses of one round are sent in the next.

Each worker adds the losses of its own encodings in the round before, its residual, to its gradient, parameter
by parameter. Over all workers nothing is lost for good: the means sent and the residuals add up to the
gradients. A worker that encodes a partial sum of several gradients adds the loss of that sum to its own
residual.

Error feedback does not always help. A codec that loses a share ω of the energy it encodes also loses this
share of the residual, and along a ring a worker encodes sums of 1 to n gradients, (n + 1)/2 on average. For ω
≥ 1 residuals grow without bound. For ω < 1 they settle; at the end of a chain, near (1 + ω/(1 − ω))ⁿ times
the energy of the gradients. From about ω·(n + 1)/2 = 1 on, a round's mean is mostly noise and error feedback
gains nothing. Both cases are called divergence here. `ReportsLosses.refuses_feedback` refuses them before
anything starts.

Two kinds of losses must not be sent again. The first are those of a skipped step: its means were not used, so
the residuals stay as they were before it. The second are the remains of a spike that the codec could not
encode: `step_memory` bounds the residuals.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.hop_codec import ReportsLosses
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.step_memory import (
    LATEST,
    MARGIN,
    LatestNorms,
    Memories,
    StepMemory,
    bounded,
    without_excess,
)
from gradwire.codecs.step_memory import PREFIX as NORMS
from gradwire.codecs.wrappers.wrapper import Wrapper

LARGEST_SHARE = 0.9
"""The share of its energy that an encoding may lose: what is kept settles at ten times the gradients' energy
even where nothing is summed."""

PREFIX = "residual/"
"""Begins the keys under which residuals are saved; the parameter's name follows."""


class ErrorFeedback(Wrapper):
    """`inner`, which reports its losses, with error feedback.

    A skipped step leaves all residuals unchanged. A round whose mean is not finite leaves its bucket's
    residuals unchanged, whether the user skips the step or not.
    """

    def __init__(self, inner: Codec) -> None:
        """Raises ValueError if `inner` does not report its losses."""
        if not isinstance(inner, ReportsLosses):
            own = hasattr(inner, "feedback") and not isinstance(inner, Adapts)
            why = "has error feedback of its own" if own else "reports no loss that could be sent later"
            raise ValueError(f"codec.ef=true: codec={inner.name} {why}; leave codec.ef out")
        super().__init__(inner)
        self._lossy: ReportsLosses = inner
        self.traits = replace(inner.traits, unbiased=False, stateful=True)
        self._residuals, self._norms = StepMemory[Tensor](), LatestNorms()
        self.memories = Memories({PREFIX: self._residuals, NORMS: self._norms})

    def refuses_capture(self, layout: Layout) -> str | None:
        return self.inner.refuses_capture(layout)

    def prepare_capture(self, this_round: Round) -> None:
        super().prepare_capture(this_round)
        layout = this_round.layout
        for name, place in zip(layout.names, layout.places, strict=True):
            length = place.stop - place.start
            self._residuals.fix(name, torch.zeros(length, dtype=torch.float32, device=layout.device))
        self._norms.fix(layout.names[0], torch.zeros(LATEST, device=layout.device))

    def options(self) -> dict[str, object]:
        return {"ef": True}

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        reason = self._lossy.refuses_feedback(1 if topology == "broadcast" else size, layout)
        if reason is not None:
            return f"codec.ef=true diverges with codec={self.name}: {reason}"
        return super().supports(topology, size, layout)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        before, corrected, wide = self._corrected(x, this_round)
        mean, losses = await self._lossy.synchronize_with_losses(corrected, wide, comm)
        delivered = mean.to(x.dtype)
        losses = losses + (mean - delivered.to(torch.float32))  # of n·mean each worker takes a share
        self._keep(this_round, before, losses, mean)
        return delivered

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """Like `synchronize`, but a rank sees only its own shard of the mean. If that is not finite, the
        bucket's residuals stay unchanged; if only another rank's shard is not finite, `skip_step` restores
        them."""
        before, corrected, wide = self._corrected(x, this_round)
        mean, losses = await self._lossy.scatter_with_losses(corrected, wide, comm)
        self._keep(this_round, before, losses, mean)
        return mean

    def _corrected(self, x: Tensor, this_round: Round) -> tuple[Tensor, Tensor, Round]:
        """The residual of a bucket, the gradient plus the residual, both (numel,) float32, and the round for
        that sum."""
        gradient = x.to(torch.float32)
        norm = self._norms.median(this_round.layout.names[0], gradient)
        times = MARGIN * self._lossy.largest_residual(this_round)
        bound = bounded if this_round.capture is None else without_excess
        before = bound(self._gather(this_round.layout, x.device), norm, times)
        wide = replace(this_round, layout=replace(this_round.layout, dtype=torch.float32))
        return before, gradient + before, wide

    def _keep(self, this_round: Round, before: Tensor, losses: Tensor, mean: Tensor) -> None:
        """Stores the losses of a bucket as its residual, or keeps the residual `before` if the losses or the
        mean are not finite."""
        layout, capture = this_round.layout, this_round.capture
        sound = losses.isfinite() & mean.isfinite().all()
        kept = torch.where(sound, losses, before)
        for name, place in zip(layout.names, layout.places, strict=True):
            self._residuals[name] = kept[place].clone()
        if capture is not None:
            capture.before_launch.append(partial(self._residuals.set_by_launch, layout.names))
            capture.before_launch.append(partial(self._norms.set_by_launch, layout.names[:1]))

    def _gather(self, layout: Layout, device: torch.device) -> Tensor:
        """The residuals of a bucket, (numel,) float32; zeros if there are none yet."""
        found = torch.zeros(layout.numel, dtype=torch.float32, device=device)
        for name, place in zip(layout.names, layout.places, strict=True):
            if name in self._residuals:
                found[place] = self._residuals[name].to(device)
        return found


def feedback_diverges(share: float, largest_sum: int) -> bool:
    """True if the residual outgrows the gradients where a worker encodes sums of 1 to `largest_sum`."""
    return share >= LARGEST_SHARE or share * (largest_sum + 1) / 2 >= 1
