"""The files of a replay: one, or a row of files with the gradients of consecutive steps of one run.

Codecs keep their state from file to file, so that what they adapt to, and the residuals of their feedback,
are those of the real step before. A row is checked by what its files say of themselves, before one is read:

    gradients=[outputs/<run>/gradients/step100.safetensors, outputs/<run>/gradients/step101.safetensors]
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.codecs.wording import shortened
from gradwire.harness.record.gradients import (
    SavedGradients,
    cached_gradients,
    check_finite,
    described_gradients,
    read_gradients,
)
from gradwire.harness.record.identity import data_fingerprint

STEP = "step"

OF_ONE_RUN = ("run", "model", "size", "codec", "seed")
"""Entries in which the files of a row say of which run they are; older ones do not say `run`, its id."""

BUCKETS = "buckets"

DIGITS = 12


@dataclass(frozen=True)
class GradientRow:
    """Files of gradients by path, in the order in which they are replayed, with what each says of itself:
    the same workers, buckets and run, and consecutive steps. A single file may be anything that can be read.
    """

    paths: tuple[str, ...]
    described: tuple[SavedGradients, ...]

    @classmethod
    def of(cls, given: str | Sequence[str]) -> GradientRow:
        """The files at one path or several. Raises ValueError, in one line, for a file that cannot be read or
        does not continue the row."""
        paths = (given,) if isinstance(given, str) else tuple(given)
        if len(paths) == 1:
            return cls(paths, (cached_gradients(paths[0]),))
        described = [described_gradients(path) for path in paths]
        for place in range(len(paths)):
            _check_step(paths, described, place)
            _check_like_first(paths, described, place)
        return cls(paths, tuple(described))

    @property
    def first(self) -> SavedGradients:
        """The description of the first file, in which the others differ only by their steps."""
        return self.described[0]

    @property
    def is_one(self) -> bool:
        """True for a single file, which says no step necessarily."""
        return len(self.paths) == 1

    @property
    def given(self) -> str | list[str]:
        """The setting that gives these files: a single one without a list."""
        return self.paths[0] if self.is_one else list(self.paths)

    @property
    def steps(self) -> list[int]:
        """The files' steps; empty for a single file."""
        if self.is_one:
            return []
        return [step for each in self.described if (step := _step_of(each)) is not None]

    @property
    def name(self) -> str:
        """The name of the file, or of the first and the last one, without suffixes."""
        stems = [Path(path).stem for path in self.paths]
        return stems[0] if self.is_one else f"{stems[0]}-{stems[-1]}"

    @property
    def words(self) -> str:
        """The path, or the first and the last one, for messages."""
        return self.paths[0] if self.is_one else f"{self.paths[0]} to {Path(self.paths[-1]).name}"

    def read(self, place: int, workers: int) -> SavedGradients:
        """The gradients of a file's first `workers`. A row's files are not kept in memory, because all of
        them may not fit. Raises ValueError in one line for damage and for values that are not finite."""
        path = self.paths[place]
        found = cached_gradients(path) if self.is_one else read_gradients(path)
        values = found.values[:workers]
        check_finite(values, path)
        return SavedGradients(values, found.buckets, found.about)

    def hash_of(self, place: int) -> str:
        """A hash of a file's name and contents."""
        return data_fingerprint(Path(self.paths[place]), every_file=True, whole=True)

    def about(self) -> dict[str, Any]:
        """The names of the files, a hash of their contents, and what they say of themselves."""
        about = {key: value for key, value in (self.first.about or {}).items() if key != BUCKETS}
        hashes = [self.hash_of(place) for place in range(len(self.paths))]
        if self.is_one:
            return {"file": Path(self.paths[0]).name, "hash": hashes[0][:DIGITS], **about}
        whole = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        names = [Path(path).name for path in self.paths]
        return {"files": names, "hash": whole[:DIGITS], **about, "last_step": self.steps[-1]}


def _step_of(file: SavedGradients) -> int | None:
    step = (file.about or {}).get(STEP)
    return step if type(step) is int else None


def _check_step(paths: Sequence[str], described: Sequence[SavedGradients], place: int) -> None:
    """Raises ValueError unless a file says its step, and that is the one after the file before."""
    path, step = paths[place], _step_of(described[place])
    if step is None:
        raise ValueError(
            f"gradients={path} does not say its step, and a row is of consecutive steps; give files that "
            'measure.save_gradients_at has kept, or add "step" to its layout (docs/gradients.md)'
        )
    before = _step_of(described[place - 1]) if place else None
    if before is None or step == before + 1:
        return
    if step <= before:
        raise ValueError(
            f"gradients={path} is of step {step}, and the file before it of step {before}; give every step "
            "once, in ascending order"
        )
    missing = f"step {before + 1}" if step == before + 2 else f"steps {before + 1} to {step - 1}"
    raise ValueError(
        f"gradients={path} is of step {step}, and the file before it of step {before}; a row has no gaps: "
        f"add {missing}, which measure.save_gradients_at=[{before}-{step}] keeps, or replay two rows"
    )


def _check_like_first(paths: Sequence[str], described: Sequence[SavedGradients], place: int) -> None:
    """Raises ValueError unless a file has the run, the workers and the buckets of the first one."""
    first, own = described[0], described[place]
    there, here = _facts(first), _facts(own)
    for key in here:
        if here[key] != there[key]:
            raise ValueError(
                f"gradients={paths[place]} has {key} {shortened(here[key])}, and {paths[0]} "
                f"{shortened(there[key])}; a row is of one run: give files that one has kept"
            )
    if own.buckets != first.buckets:
        raise ValueError(
            f"gradients={paths[place]} has other parameters, or another order of them, than {paths[0]}; a "
            "row is of one run: give files that one has kept"
        )


def _facts(file: SavedGradients) -> Mapping[str, Any]:
    about = file.about or {}
    return {
        **{key: about.get(key) for key in OF_ONE_RUN},
        "workers": file.workers,
        "coordinates": file.numel,
        "type": str(file.values.dtype).removeprefix("torch."),
    }
