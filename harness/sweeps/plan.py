"""A sweep before it starts: all its cells composed and checked, those of the sweeps that it needs included.

Settings that depend on files of needed cells that do not exist yet, like the id of a replay, are checked as
far as possible; `settled` checks the rest once the files exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.conf import HydraConf

from gradwire.harness.config.declared import SEED, Source, declared_in
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.plugins import allow_plugins
from gradwire.harness.config.root_keys import SweepConfig
from gradwire.harness.record.identity import FOLLOWS
from gradwire.harness.report.configs import covered, flatten
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.sweeps.cells import expand, key_of, swept_keys
from gradwire.harness.sweeps.folder import digest, place_of
from gradwire.harness.sweeps.planned_cell import PlannedCell, composed_cell, planned_cell
from gradwire.harness.sweeps.record import without_folders
from gradwire.harness.sweeps.request import SweepRequest, sweep_settings

CODEC = "codec"


@dataclass(frozen=True)
class Plan:
    """A sweep before it starts."""

    request: SweepRequest
    name: str
    """The name including the size, used for its folder and for its runs' group in wandb."""
    cells: Sequence[PlannedCell]
    output: Path
    needs: Sequence[Plan]
    overrides: Sequence[str]
    """The overrides of the command line that change the named sweep's cells; empty if there are none."""
    sweep: str
    """The name in `sweeps=`; a digest if the sweep is defined only on the command line."""
    note: str = ""
    """The reason why its folder is not the usual one."""

    @property
    def size(self) -> str:
        return self.request.size

    @property
    def settings(self) -> SweepConfig:
        return self.request.settings

    @property
    def command(self) -> str:
        """The command that runs it, without options that change no result."""
        return " ".join([program(), *self.request.arguments])

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
        """Those of all its tasks."""
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
    settings = sweep_settings(arguments)
    own = [text for text in arguments if not key_of(text).startswith("sweep.")]
    asked = None if hydra.sweep.dir == "." else Path(hydra.sweep.dir)
    choices = hydra.runtime.choices
    request = SweepRequest(choices.get("sweeps"), choices["size"], declared_in(hydra), own, settings, asked)
    return _planned(request)


def settled(plan: Plan) -> Plan:
    """The plan after needed cells have run, when more of its cells can be checked and named.

    Raises ConfigError for a cell that turns out to be impossible.
    """
    return plan if all(cell.directory for cell in plan.cells) else _planned(plan.request)


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


def _planned(request: SweepRequest) -> Plan:
    """The plan of a sweep and of those that it needs."""
    name, settings = request.name, request.settings
    needs = {alias: _planned(request.needed(alias)) for alias in request.declared.needs}
    sources = {alias: _sources(plan) for alias, plan in needs.items()}
    try:
        expanded = expand(request.declared, request.size, request.arguments, sources)
    except ConfigError as error:
        above = request.above
        raise ConfigError(f"{above[-1]} needs {name}: {error}" if above else str(error)) from None
    given = request.given
    composing = tracked(expanded, f"{name or 'sweep'}: composing", "cell", lambda cell: cell.label)
    planned = [planned_cell(cell, request.asked, settings, given) for cell in composing]
    cells = list({cell.directory or cell.cell.overrides: cell for cell in planned}.values())  # each run once
    changes = request.changes
    if name is None:
        found_name = digest(cell.run for cell in cells)
    else:
        found_name, own = f"{name}-{request.size}", {cell.description for cell in cells}
        changed_needs = any(plan.overrides for plan in needs.values())
        if changes and (changed_needs or own != _as_named(request, sources)):
            needed = {cell.description for plan in needs.values() for cell in plan.cells}
            found_name += f"-{digest(own | needed)}"
        else:
            changes = []
    place = place_of(found_name, request.asked, cells)
    return Plan(
        request,
        name=found_name if request.asked is not None else place.folder.name,
        cells=cells,
        output=place.folder,
        needs=tuple(needs.values()),
        overrides=changes,
        sweep=name or found_name,
        note=place.note,
    )


def _as_named(request: SweepRequest, sources: Mapping[str, Sequence[Source]]) -> set[str] | None:
    """The descriptions of a named sweep's cells without any override; None if it cannot run without."""
    arguments = [f"sweeps={request.name}", f"size={request.size}"]
    try:
        named = replace(request, arguments=arguments, settings=sweep_settings(arguments))
        cells = expand(named.declared, named.size, arguments, sources)
        return {composed_cell(cell, named.settings, named.given).description for cell in cells}
    except ValueError:
        return None


def _sources(plan: Plan) -> list[Source]:
    """The plan's cells, in the form in which others take values from them."""
    keys = swept_keys([cell.cell for cell in plan.cells])
    sources = []
    for cell in plan.cells:
        axes = {key: value for key in keys if (value := cell.cell.swept.get(key)) is not None}
        axes = {key: value for key, value in axes.items() if f"{key}={value}" in cell.cell.overrides}
        axes[SEED] = str(cell.config.seed)
        sources.append(Source(cell.label, axes, flatten(cell.config.mapping()), cell.directory))
    return sources
