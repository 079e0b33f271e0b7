"""How many blocks each worker takes, so that the union of all workers' choices is as large as wanted
(DynamiQ Appendix C, equation 1).

k is kept as a share of the blocks, which outlives a change of the buckets, under the name of a bucket's first
parameter. It follows from the sizes of unions alone, which all ranks know, so all ranks have the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.codecs.step_memory import StepMemory

_PREFIX = "k/"


class LocalK:
    """k of every bucket. Each round k ← γ·k + (1 − γ)·(K/K')·k, where K is `target` of the blocks and K' the
    number in the union; k stays between one block and all."""

    def __init__(self, target: float, gamma: float) -> None:
        self._target, self._gamma = target, gamma
        self._shares = StepMemory[float]()
        self._blocks = self._taken = self._united = 0

    def blocks(self, bucket: str, workers: int, total: int) -> int:
        """Blocks a worker takes of the `total` ones of a bucket."""
        share = self._shares.setdefault(bucket, self._first_share(workers))
        return min(max(round(share * total), 1), total)

    def _first_share(self, workers: int) -> float:
        """What fills the target if workers choose independently; where they agree, the union begins smaller
        and grows fast, while a union too large would shrink by at most 1 − γ a round."""
        unchosen: float = (1.0 - self._target) ** (1.0 / workers)
        return 1.0 - unchosen

    def follow(self, bucket: str, workers: int, union: int, total: int) -> None:
        """Adapt k to a union of `union` blocks of `total`."""
        taken, share = self.blocks(bucket, workers, total), self._shares[bucket]
        changed = self._gamma * share + (1.0 - self._gamma) * (self._target * total / union) * share
        self._shares[bucket] = min(max(changed, 1.0 / total), 1.0)
        self._blocks += total
        self._taken += taken
        self._united += union

    def end_step(self) -> dict[str, float]:
        """The step's k and union over all buckets, as shares of all blocks."""
        self._shares.end_step()
        return self._counted()

    def skip_step(self) -> dict[str, float]:
        """As above, for a step whose unions k does not follow."""
        self._shares.skip_step()
        return self._counted()

    def _counted(self) -> dict[str, float]:
        blocks, taken, united = self._blocks, self._taken, self._united
        self._blocks = self._taken = self._united = 0
        return {"k": taken / blocks, "union": united / blocks} if blocks else {}

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{_PREFIX}{bucket}": torch.tensor(share, dtype=torch.float64)
            for bucket, share in self._shares.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        foreign = sorted(key for key in state if not key.startswith(_PREFIX))
        if foreign:
            raise ValueError(f"the state of OmniReduce has {_PREFIX}<parameter>, got {foreign}")
        self._shares.load({key.removeprefix(_PREFIX): float(share) for key, share in state.items()})
        self._blocks = self._taken = self._united = 0
