"""What every codec can be asked for beside its own fields: wrappers around it (`registry.make_codec`)."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.fields import list_of


@dataclass
class CommonOptions:
    """The options common to all codecs, as a run's configuration has them."""

    exclude: list[str] = list_of(hint="e.g. [*embed*]")  # globs of parameters that travel in bf16
    ef: bool = False  # error feedback: what a worker's encodings lose is added to its next gradient
