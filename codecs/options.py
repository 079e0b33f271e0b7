"""What every codec can be asked for beside its own fields: wrappers around it (`registry.make_codec`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CommonOptions:
    """The options common to all codecs, as a run's configuration has them."""

    exclude: list[str] = field(default_factory=list)  # globs of parameters that travel in bf16
    ef: bool = False  # error feedback: what a worker's encodings lose is added to its next gradient
