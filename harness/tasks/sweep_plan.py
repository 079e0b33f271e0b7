"""A sweep before it starts: all its cells composed and checked, those of the sweeps that it needs included.

Settings that depend on files of needed cells that do not exist yet, like the id of a replay, are checked as
far as possible; `settled` checks the rest once the files exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from hydra.conf import HydraConf
from omegaconf import OmegaConf

from gradwire.codecs.fields import check_fields
from gradwire.harness.config.cells import expand, swept_keys, tasks_of
from gradwire.harness.config.compose import choices_of_groups, compose, composed_hydra
from gradwire.harness.config.declared import SEED, Declared, Source, declared_in
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.plugins import allow_plugins
from gradwire.harness.config.root_keys import SweepConfig, root_rules
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.record.identity import FOLLOWS
from gradwire.harness.report.configs import covered, flatten
from gradwire.harness.report.sweep_cells import without_folders
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, refused_as_config_error
from gradwire.harness.runtime.program import program
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.tasks.planned_cell import PlannedCell, chosen_text, planned_cell, typed_cell
from gradwire.harness.tasks.sweep_folder import cell_text, cells_digest, overridden, place_of, runs_digest

CODEC = "codec"


@dataclass(frozen=True)
class Plan:
    """A sweep before it starts."""

    sweep: str
    """The name in `sweeps=`; a digest if the sweep is defined only on the command line."""
    name: str
    """The name including the size, used for its folder and for its runs' group in wandb."""
    size: str
    settings: SweepConfig
    cells: Sequence[PlannedCell]
    output: Path
    needs: Sequence[Plan]
    command: str
    """The command that runs it, without options that change no result."""
    overrides: Sequence[str]
    """The overrides of the command line that change the named sweep's cells; empty if there are none."""
    again: Callable[[], Plan]
    """Plans the same sweep again."""
    note: str = ""
    """The reason why its folder is not the usual one."""

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def asked_in_words(self) -> str:
        """The overrides in which it differs from others of its name, e.g. `, with codec=bf16`; empty without
        any."""
        return f", with {without_folders(' '.join(self.overrides))}" if self.overrides else ""

    @property
    def axes(self) -> list[str]:
        """The axes of all its tasks."""
        return list(dict.fromkeys(axis for task in self.tasks for axis in sweep_axes(self.of_task(task))))

    @property
    def with_needs(self) -> list[Plan]:
        """The plans of the sweeps that it needs, in running order, followed by itself."""
        plans = [plan for need in self.needs for plan in need.with_needs]
        return list({plan.output: plan for plan in [*plans, self]}.values())

    @property
    def by_turns(self) -> list[PlannedCell]:
        """The cells in the order in which they start: seed by seed, and for each combination of other axes
        one codec after another, so that changes of the machine over time affect all codecs alike."""

        def others(cell: PlannedCell) -> str:
            return repr(
                sorted(each for each in cell.cell.swept.items() if not covered(each[0], (SEED, CODEC)))
            )

        seeds = list(dict.fromkeys(cell.config.seed for cell in self.cells))
        places = list(dict.fromkeys(map(others, self.cells)))
        return sorted(
            self.cells, key=lambda cell: (seeds.index(cell.config.seed), places.index(others(cell)))
        )

    def of_task(self, task: str) -> list[PlannedCell]:
        return [cell for cell in self.cells if cell.task == task]


def plan_sweep(hydra: HydraConf, arguments: Sequence[str]) -> Plan:
    """Plans all cells of the sweep that Hydra's own node and the command line describe.

    Raises ConfigError, naming the cell, if one of them cannot run, and for needs that lead in a circle.
    """
    if hydra.run.dir != ".":
        raise ConfigError(
            f"hydra.run.dir={hydra.run.dir} would be shared by all runs of a sweep; use "
            f"hydra.sweep.dir={hydra.run.dir}"
        )
    allow_plugins(parse(arguments))
    settings = _settings(arguments)
    own = [text for text in arguments if not text.lstrip("+").startswith("sweep.")]
    asked = None if hydra.sweep.dir == "." else Path(hydra.sweep.dir)
    choices = hydra.runtime.choices
    return _planned_sweep(choices.get("sweeps"), choices["size"], hydra, own, settings, asked, ())


def settled(plan: Plan) -> Plan:
    """The plan after needed cells have run, when more of its cells can be checked and named.

    Raises ConfigError for a cell that turns out to be impossible.
    """
    return plan if all(cell.directory for cell in plan.cells) else plan.again()


def sweep_axes(cells: Sequence[PlannedCell]) -> list[str]:
    """The dotted keys in which the cells differ: the swept ones, then those that follow from them.

    For example, a swept `model` brings its own learning rate. The seed is no axis.
    """
    swept = [key for key in swept_keys([cell.cell for cell in cells]) if key != SEED]
    flat = [flatten(cell.config.mapping()) for cell in cells]
    keys = sorted({key for settings in flat for key in settings})
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    following = {key for key in differing if FOLLOWS.get(key) in (*swept, *differing)}
    return [*swept, *(key for key in differing if key not in (SEED, *following) and not covered(key, swept))]


def _settings(arguments: Sequence[str]) -> SweepConfig:
    """`sweep.*`, as the sweep's file and the command line set it."""
    lines = [str(each.input_line) for each in parse(arguments) if not each.is_sweep_override()]
    chosen = [text for text in lines if "." not in text.partition("=")[0] or text.startswith("sweep.")]
    found = compose(chosen, named_by_user=False).sweep
    values = {str(key): value for key, value in cast(dict[str, Any], OmegaConf.to_container(found)).items()}
    refused_as_config_error(check_fields, SweepConfig, values, "sweep")
    return SweepConfig(**values)


def _planned_sweep(
    name: str | None,
    size: str,
    hydra: HydraConf,
    arguments: Sequence[str],
    settings: SweepConfig,
    asked: Path | None,
    above: tuple[str, ...],
) -> Plan:
    """The plan of a sweep; `above` lists the sweeps that need it."""
    declared = declared_in(hydra)
    chain = (*above, name or "this sweep")
    needs = {
        alias: _needed(alias, sweep, size, declared, arguments, settings, asked, chain)
        for alias, sweep in declared.needs.items()
    }
    sources = {alias: _sources(plan) for alias, plan in needs.items()}
    given = [override.get_key_element() for override in parse(arguments)]
    try:
        expanded = expand(declared, size, arguments, sources)
    except ConfigError as error:
        raise ConfigError(f"{above[-1]} needs {name}: {error}" if above else str(error)) from None
    fixed = given if name is not None or settings.data is not None else [*given, "dataset"]
    composing = tracked(expanded, f"{name or 'sweep'}: composing", "cell", lambda cell: cell.label)
    planned = [planned_cell(cell, asked, settings, fixed) for cell in composing]
    cells = list({cell.directory or cell.cell.overrides: cell for cell in planned}.values())  # each run once
    changes = overridden(arguments, settings.data)
    directories, labels = [cell.directory for cell in cells], [cell.cell.label for cell in cells]
    found_name = runs_digest(directories, labels)
    if name is not None:
        changed_needs = any(plan.overrides for plan in needs.values())
        found_name, own = f"{name}-{size}", {cell.described for cell in cells}
        if changes and (changed_needs or own != _as_named(name, size, declared, sources)):
            needed = [cell.described for plan in needs.values() for cell in plan.cells]
            found_name += f"-{cells_digest([*own, *needed])}"
    place = place_of(found_name, asked, directories, labels)
    return Plan(
        sweep=name or found_name,
        name=found_name if asked is not None else place.folder.name,
        size=size,
        settings=settings,
        cells=cells,
        output=place.folder,
        needs=tuple(needs.values()),
        command=" ".join([program(), *arguments]),
        overrides=changes if found_name != f"{name}-{size}" else [],
        again=partial(_planned_sweep, name, size, hydra, arguments, settings, asked, above),
        note=place.note,
    )


def _as_named(
    name: str, size: str, declared: Declared, sources: Mapping[str, Sequence[Source]]
) -> set[str] | None:
    """The descriptions of a sweep's cells without any override; None if it cannot run without."""
    arguments = [f"sweeps={name}", f"size={size}"]
    try:
        settings = _settings(arguments)
        cells = expand(declared, size, arguments, sources)
        chosen = [chosen_text(cell, settings, ("sweeps", "size")) for cell in cells]
        return {cell_text(cell, typed_cell(composed)) for cell, composed, _ in chosen}
    except ValueError:
        return None


def _needed(
    alias: str,
    sweep: str,
    size: str,
    asking: Declared,
    arguments: Sequence[str],
    settings: SweepConfig,
    asked: Path | None,
    above: tuple[str, ...],
) -> Plan:
    """The plan of a needed sweep, at the same size, with those overrides of the command line that concern
    it.
    """
    known = choices_of_groups()["sweeps"]
    if sweep not in known:
        raise ConfigError(
            f"sweeps={above[-1]}: needs {alias}: {sweep}, which is not a sweep; choose one of "
            f"{', '.join(known)}{did_you_mean(sweep, known)}"
        )
    if sweep in above:
        circle = " -> ".join([*above[above.index(sweep) :], sweep])
        raise ConfigError(f"sweeps={above[0]}: its needs lead in a circle, {circle}; remove one of them")
    own = [f"sweeps={sweep}", f"size={size}"]
    node = composed_hydra(own)
    declared = declared_in(node)
    try:
        tasks = tasks_of(declared, size, own)
    except ConfigError as error:
        raise ConfigError(f"{above[-1]} needs {sweep}: {error}") from None
    passed = _passed_on(arguments, asking, size, tasks)
    mine = SweepConfig(data=settings.data, paper=_settings(own).paper)
    folder = None if asked is None else asked / sweep
    return _planned_sweep(sweep, size, cast(HydraConf, node), [*own, *passed], mine, folder, above)


def _passed_on(arguments: Sequence[str], asking: Declared, size: str, tasks: Sequence[str]) -> list[str]:
    """The command line's overrides that apply to a needed sweep of these `tasks`: all except those about keys
    that the asking sweep's own cases set, and those of other tasks."""
    cases = asking.cases.get("any", asking.cases.get(size, []))
    heads = {
        str(key).partition(".")[0] for case in cases for key in case if not isinstance(case[key], Mapping)
    }
    passed = []
    for override in parse(arguments):
        key = override.get_key_element()
        foreign = any(key in root_rules(task) for task in TASKS) and not any(
            key in root_rules(task) for task in tasks
        )
        about_asking = key.partition(".")[0] in heads - {SEED}
        if key not in ("sweeps", "size", "task") and not about_asking and not foreign:
            passed.append(str(override.input_line))
    return passed


def _sources(plan: Plan) -> list[Source]:
    """The plan's cells, in the form in which others take values from them."""
    keys = swept_keys([cell.cell for cell in plan.cells])
    sources = []
    for cell in plan.cells:
        axes = {key: value for key in keys if (value := cell.cell.swept.get(key)) is not None}
        axes = {key: value for key, value in axes.items() if f"{key}={value}" in cell.cell.overrides}
        axes[SEED] = str(cell.config.seed)
        flat = flatten(cell.config.mapping())
        sources.append(Source(cell.cell.label, axes, flat, cell.directory))
    return sources
