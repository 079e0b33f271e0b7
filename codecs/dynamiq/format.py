"""What a super-group puts on the wire besides its codes: scales and statistics, by DynamiQ's switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.codecs.dynamiq.blocks import SUPER_GROUP

Scales = Literal["hierarchical", "bf16"]
"""`hierarchical`: a uint8 per group and a bf16 per super-group (DynamiQ §3.3); `bf16`: a bf16 per group."""

BF16_BYTES = 2


@dataclass(frozen=True)
class Format:
    """The settings that sizes and places of bytes depend on.

    `widths` (ascending) are the bits per coordinate a super-group may get, `group` the coordinates that share
    a scale, `mean` says whether the super-groups' means are subtracted, hence sent. Norms are sent if there
    are widths to choose from. With several `codebooks`, the scale of a super-group says which one it has.
    """

    widths: tuple[int, ...] = (2, 4, 8)
    group: int = 16
    scales: Scales = "hierarchical"
    mean: bool = True
    codebooks: int = 1

    @property
    def groups(self) -> int:
        """Groups of a super-group."""
        return SUPER_GROUP // self.group

    @property
    def norm(self) -> bool:
        """Whether the super-groups' norms are sent."""
        return len(self.widths) > 1

    @property
    def group_scale_bytes(self) -> int:
        """Of one group's scale."""
        return 1 if self.scales == "hierarchical" else BF16_BYTES

    @property
    def scale_bytes(self) -> int:
        """Of all scales of one super-group."""
        shared = BF16_BYTES if self.scales == "hierarchical" else 0
        return self.groups * self.group_scale_bytes + shared

    @property
    def statistics_bytes(self) -> int:
        """Of one super-group in the metadata message."""
        return BF16_BYTES * (self.mean + self.norm)

    @property
    def overhead_bits(self) -> float:
        """Bits per coordinate spent on scales and statistics: 0.6875 in the paper."""
        return 8 * (self.scale_bytes + self.statistics_bytes) / SUPER_GROUP
