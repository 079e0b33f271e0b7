"""A sweep as it is asked for: by the command line, or by a sweep that needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from gradwire.codecs.fields import check_fields
from gradwire.harness.config.compose import choices_of_groups, compose, composed_hydra
from gradwire.harness.config.declared import SEED, Declared, declared_in
from gradwire.harness.config.overrides import parse, single_lines
from gradwire.harness.config.root_keys import SweepConfig, root_rules
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, refused_as_config_error
from gradwire.harness.sweeps.cells import tasks_of
from gradwire.harness.sweeps.planned_cell import makes_another_cell


@dataclass(frozen=True)
class SweepRequest:
    """A sweep's name, size and cases, and what the command line says of it."""

    name: str | None
    """The name in `sweeps=`; None where the command line alone describes it."""
    size: str
    declared: Declared
    arguments: Sequence[str]
    """The command line's overrides that are about it, `sweep.*` aside."""
    settings: SweepConfig
    asked: Path | None
    """The folder asked for by `hydra.sweep.dir=`."""
    above: tuple[str, ...] = ()
    """The sweeps that need it, the one on the command line first."""

    @property
    def chain(self) -> tuple[str, ...]:
        """`above`, and itself."""
        return (*self.above, self.name or "this sweep")

    @property
    def given(self) -> list[str]:
        """The keys that the command line sets. A sweep that the command line alone describes has chosen its
        text, too, unless `sweep.data` does."""
        keys = [override.get_key_element() for override in parse(self.arguments)]
        return keys if self.name is not None or self.settings.data is not None else [*keys, "dataset"]

    @property
    def changes(self) -> list[str]:
        """The overrides that can change its cells, with `sweep.data`."""
        found = [each for each in parse(self.arguments) if makes_another_cell(each.get_key_element())]
        data = [] if self.settings.data is None else [f"sweep.data={self.settings.data}"]
        return [*(str(each.input_line) for each in found), *data]

    def needed(self, alias: str) -> SweepRequest:
        """The request of a needed sweep: at the same size, with what the command line says as far as it is
        about it. Raises ConfigError."""
        sweep, chain = self.declared.needs[alias], self.chain
        known = choices_of_groups()["sweeps"]
        if sweep not in known:
            raise ConfigError(
                f"sweeps={chain[-1]}: needs {alias}: {sweep}, which is not a sweep; choose one of "
                f"{', '.join(known)}{did_you_mean(sweep, known)}"
            )
        if sweep in chain:
            circle = " -> ".join([*chain[chain.index(sweep) :], sweep])
            raise ConfigError(f"sweeps={chain[0]}: its needs lead in a circle, {circle}; remove one of them")
        own = [f"sweeps={sweep}", f"size={self.size}"]
        declared = declared_in(composed_hydra(own))
        try:
            tasks = tasks_of(declared, self.size, own)
        except ConfigError as error:
            raise ConfigError(f"{chain[-1]} needs {sweep}: {error}") from None
        settings = SweepConfig(data=self.settings.data, paper=sweep_settings(own).paper)
        folder = None if self.asked is None else self.asked / sweep
        arguments = [*own, *self._passed_on(tasks)]
        return SweepRequest(sweep, self.size, declared, arguments, settings, folder, chain)

    def _passed_on(self, tasks: Sequence[str]) -> list[str]:
        """The overrides that reach a needed sweep of these `tasks`: all but those about keys that the own
        cases set, and those of other tasks."""
        heads = {
            str(key).partition(".")[0]
            for case in self.declared.cases_of(self.size)
            for key, value in case.items()
            if not isinstance(value, Mapping)
        }
        passed = []
        for override in parse(self.arguments):
            key = override.get_key_element()
            foreign = any(key in root_rules(task) for task in TASKS) and not any(
                key in root_rules(task) for task in tasks
            )
            about_own_cases = key.partition(".")[0] in heads - {SEED}
            if key not in ("sweeps", "size", "task") and not about_own_cases and not foreign:
                passed.append(str(override.input_line))
        return passed


def sweep_settings(arguments: Sequence[str]) -> SweepConfig:
    """`sweep.*`, as the sweep's file and the command line set it."""
    lines = single_lines(parse(arguments))
    chosen = [text for text in lines if "." not in text.partition("=")[0] or text.startswith("sweep.")]
    found = compose(chosen, named_by_user=False).sweep
    values = {str(key): value for key, value in cast(dict[str, Any], OmegaConf.to_container(found)).items()}
    refused_as_config_error(check_fields, SweepConfig, values, "sweep")
    return SweepConfig(**values)
