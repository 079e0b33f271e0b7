"""A sweep as a file declares it: `cases`, `common` and `needs` of `hydra.sweeper`, checked.

Cells take values from those of other sweeps:

needs: {warm: dynamiq_gradients}   # a name, and the sweep that it stands for
    cases:
      small:
        - {task: replay, gradients: {from: warm, take: gradients, step: 60}, codec: [bf16, thc]}
        - {task: replay, gradients: {from: warm, take: gradients, row: 100-109}, codec: mxfp8}
        - {task: retime, run: {from: warm, take: run, where: {codec: bf16}}, network.rate_mbit: [100, 1000]}

A `row` is one value: the files of consecutive steps.

Every needed cell that matches gives a value. The axes of the needed cells also distinguish the cells of this
sweep; seeds are paired: a cell with seed 1 takes from a cell with seed 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from gradwire.codecs.fields import LONGEST_LIST, is_plain_name, range_of
from gradwire.harness.record.directory import listed_steps, saved_path
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, shortened

FORM = "{from: <a name in needs>, take: gradients, step: 60}"
KEYS = ("from", "take", "step", "row", "where")
WHAT = ("gradients", "weights", "run", "checkpoint")
"""The things that a cell can take: the gradients or weights of a step, the run's directory, or its final
checkpoint."""

OF_STEPS = ("gradients", "weights")

CHECKPOINT = "checkpoint"
NOT_THERE_YET = "not-there-yet"
"""A placeholder for the directory of a needed cell that itself waits for another one."""

SEED = "seed"

ANY_SIZE = "any"
"""The key of cases of a sweep that does not depend on the size, such as one of replays."""

CASES, COMMON, NEEDS = "hydra.sweeper.cases", "hydra.sweeper.common", "hydra.sweeper.needs"


@dataclass(frozen=True)
class Declared:
    """A sweep as its file declares it, sizes by name; `needs` maps names to sweeps."""

    cases: Mapping[str, Any] = field(default_factory=dict)
    common: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)

    def cases_of(self, size: str) -> Sequence[Mapping[str, Any]]:
        """The cases of a size; none where the sweep has none for it."""
        found: Sequence[Mapping[str, Any]] = self.cases.get(ANY_SIZE, self.cases.get(size, []))
        return found

    def common_of(self, size: str) -> Mapping[str, Any]:
        """The values that all cases of a size share."""
        found: Mapping[str, Any] = self.common.get(size, self.common.get(ANY_SIZE, {}))
        return found


def declared_in(hydra: Any) -> Declared:
    """The sweep that Hydra's own node declares. Raises ConfigError."""
    return declared(cast(dict[str, Any], OmegaConf.to_container(hydra.sweeper)))


def declared(sweeper: Mapping[str, Any]) -> Declared:
    """The sweep in a mapping of `hydra.sweeper`. Raises ConfigError if it does not describe a sweep."""
    cases, common = sweeper.get("cases", {}), sweeper.get("common", {})
    needs = check_needs(sweeper.get("needs", {}))
    if not isinstance(common, Mapping) or not all(isinstance(each, Mapping) for each in common.values()):
        raise ConfigError(
            f"{COMMON}={shortened(common)}: choose a mapping, e.g. {{tiny: {{train.steps: 3}}}}"
        )
    for size, values in common.items():
        for name, value in values.items():
            _check_swept(f"{COMMON}.{shortened(size)}", str(name), value)
    if not isinstance(cases, Mapping):
        raise ConfigError(f"{CASES}={shortened(cases)}: choose a mapping, e.g. {{any: [{{seed: [0, 1]}}]}}")
    for size, found in cases.items():
        key = f"{CASES}.{shortened(size)}"
        if not is_plain_name(size) or size.startswith("_"):
            raise ConfigError(f"{key}: is not a size; choose one, e.g. tiny, or any")
        if not isinstance(found, list) or not found or not all(isinstance(case, Mapping) for case in found):
            raise ConfigError(
                f"{key}={shortened(found)}: choose a list of mappings, e.g. [{{codec: bf16, seed: [0, 1]}}]"
            )
        for name, value in (pair for case in found for pair in case.items()):
            takes = isinstance(value, Mapping) and "from" in value
            if takes:
                taking(f"{key}: {name}", value, needs)
            _check_swept(key, str(name), None if takes else value)
    return Declared(cases, common, needs)


def _check_swept(key: str, name: str, value: Any) -> None:
    if name.lstrip("+~").startswith(("_", "hydra")):
        raise ConfigError(f"{key}: {shortened(name)} cannot be swept; choose a key of --help")
    if _holds_mapping(value):
        raise ConfigError(f"{key}: {name}={shortened(value)}: choose a value or a list of values")


def _holds_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_holds_mapping, value)))


@dataclass(frozen=True)
class Source:
    """A cell of a needed sweep, in the form in which other cells take values from it."""

    label: str
    axes: Mapping[str, str]
    """The axes in which it differs from the other cells, the seed included, as text of Hydra's override
    grammar."""
    settings: Mapping[str, Any]
    """Its configuration by dotted key."""
    directory: Path | None
    """The directory of its files, which may not exist yet; None if its name depends on files that do not
    exist yet."""

    def fits(self, where: Mapping[str, Sequence[Any]]) -> bool:
        """True if it has one of the values that `where` allows for each of its keys."""
        return all(
            self.settings.get(f"{key}.name", self.settings.get(key)) in allowed
            for key, allowed in where.items()
        )


@dataclass(frozen=True)
class Taking:
    """One value that a case takes from needed cells."""

    need: str
    what: str
    steps: tuple[int | range, ...] = ()
    """Single steps, and rows of them."""
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The words in labels for what it takes from a cell, one text for each step or row: `warm:step60`,
        `warm:step100-109`."""
        if self.what not in OF_STEPS:
            return [f"{self.need}:{self.what}"]
        word = "step" if self.what == "gradients" else self.what
        return [f"{self.need}:{word}{_written(step)}" for step in self.steps]

    def values(self, key: str, sources: Sequence[Source]) -> Iterator[tuple[Source, str | list[str], str]]:
        """(needed cell, path, words in a label) for each value; a row has a list of paths. Raises ConfigError
        if there is none."""
        fitting = [source for source in sources if source.fits(self.where)]
        if not fitting:
            conditions = ", ".join(f"{name}={shortened(allowed)}" for name, allowed in self.where.items())
            raise ConfigError(f"{key}: no cell of {self.need} fits {conditions}; correct the case's where")
        for source in fitting:
            folder = source.directory or Path(NOT_THERE_YET)
            if self.what in OF_STEPS:
                for step, words in zip(self.steps, self.words, strict=True):
                    row = step if isinstance(step, range) else (step,)
                    self._check_kept(key, source, row)
                    paths = [str(saved_path(folder, each, self.what)) for each in row]
                    yield source, paths if isinstance(step, range) else paths[0], words
            else:
                path = folder / CHECKPOINT if self.what == CHECKPOINT else folder
                yield source, str(path), self.words[0]

    def _check_kept(self, key: str, source: Source, row: Sequence[int]) -> None:
        name = f"save_{self.what}_at"
        given = source.settings.get(f"measure.{name}")
        kept = None if given is None else listed_steps(name, given)
        step = None if kept is None else next((step for step in row if step not in kept), None)
        if kept is not None and step is not None:
            steps = shortened(", ".join(map(str, kept))) or "none"
            raise ConfigError(
                f"{key}: step {step} of {self.need} is not kept, its steps kept are {steps}; choose one, or "
                f"add it to that sweep's measure.{name} ({source.label})"
            )


def _written(step: int | range) -> str:
    """A step, or a row as in a file: `100-109`."""
    return f"{step[0]}-{step[-1]}" if isinstance(step, range) else str(step)


def taking(key: str, value: Mapping[Any, Any], needs: Mapping[str, str]) -> Taking:
    """The `Taking` described by a mapping that is the value of a case's `key`. Raises ConfigError for a
    mapping of another form."""
    strange = next((str(name) for name in value if name not in KEYS), None)
    if strange is not None:
        hint = did_you_mean(strange, KEYS)
        raise ConfigError(
            f"{key}: {shortened(strange)} is unknown in {shortened(dict(value))}; write {FORM}{hint}"
        )
    need, what, where = value.get("from"), value.get("take"), value.get("where", {})
    if need not in needs:
        known = f"needs has {', '.join(needs)}" if needs else "the sweep has no needs"
        raise ConfigError(f"{key}: from: {shortened(need)} is not a name in needs; {known}: write {FORM}")
    if what not in WHAT:
        raise ConfigError(f"{key}: take: {shortened(what)}: choose {', '.join(WHAT)}")
    steps: tuple[int | range, ...] = _rows(key, value) if "row" in value else _steps(key, value, str(what))
    if not isinstance(where, Mapping):
        raise ConfigError(f"{key}: where: {shortened(where)}: choose a mapping, e.g. {{codec: bf16}}")
    return Taking(str(need), str(what), steps, {str(name): _listed(each) for name, each in where.items()})


def _steps(key: str, value: Mapping[Any, Any], what: str) -> tuple[int, ...]:
    """The values of `step`, none for what has no steps. Raises ConfigError."""
    steps = tuple(_listed(value["step"])) if "step" in value else ()
    if (what in OF_STEPS) != bool(steps) or not all(type(step) is int and step >= 0 for step in steps):
        needed = (
            "choose the step, or a list of steps" if what in OF_STEPS else f"leave it out with take: {what}"
        )
        raise ConfigError(f"{key}: step: {shortened(value.get('step'))}: {needed}")
    return steps


def _rows(key: str, value: Mapping[Any, Any]) -> tuple[range, ...]:
    """The values of `row`, each the files of one value. Raises ConfigError."""
    given, what = _listed(value["row"]), value.get("take")
    if what != "gradients" or "step" in value:
        instead = "with step" if "step" in value else f"with take: {what}"
        raise ConfigError(f"{key}: row: {shortened(value['row'])}: cannot be used {instead}; leave one out")
    rows = [found for each in given if (found := range_of(each)) is not None and len(found) <= LONGEST_LIST]
    if len(rows) < len(given) or not rows:
        raise ConfigError(
            f"{key}: row: {shortened(value['row'])}: choose a first and a last step, e.g. 100-109, at most "
            f"{LONGEST_LIST} steps, or a list of such rows"
        )
    return tuple(rows)


def check_needs(needs: Any) -> dict[str, str]:
    """The `needs` of a file, checked. Raises ConfigError."""
    words = isinstance(needs, Mapping) and all(
        isinstance(word, str) for pair in needs.items() for word in pair
    )
    if not words or not all(name.isidentifier() for name in needs):
        raise ConfigError(
            f"{NEEDS}={shortened(needs)}: choose a mapping of names to sweeps, e.g. {{warm: demo}}"
        )
    return {str(name): str(sweep) for name, sweep in needs.items()}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
