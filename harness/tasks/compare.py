"""`task=compare runs=[a,b]`: the tables and plots of a sweep for existing runs."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradwire.harness.config.run_name import OUTPUTS
from gradwire.harness.config.tasks import CompareTask
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG, is_done, make_directory
from gradwire.harness.record.identity import FOLLOWS
from gradwire.harness.record.runs import find_runs
from gradwire.harness.record.seal import check_done
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import (
    ABSENT,
    SEED,
    Settings,
    changes_result,
    covered,
    flatten,
    holders_by_key,
    some_names,
)
from gradwire.harness.report.tables import Page, Table
from gradwire.harness.sweeps.folder import digest
from gradwire.harness.sweeps.run import compare_runs
from gradwire.harness.tasks.runs import state_in

COMPARISONS = OUTPUTS / "comparisons"

FEWEST_DIGITS = 4
"""The smallest number of characters of an id that identify a run."""


def run(config: CompareTask) -> int:
    """Prints the tables and writes them with plots; raises ValueError in one line for runs that cannot be
    compared."""
    asked = [config.runs] if isinstance(config.runs, str | float | int) else config.runs
    folders = chosen_runs(list(map(str, asked)))
    for folder in folders:
        if not is_done(folder):
            raise ValueError(f"runs={folder}: is {state_in(folder)}, and only finished runs are compared")
        check_done(folder)
    configs = {folder.name: read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder) for folder in folders}
    names = {name: str((found.get("task") or {}).get("name")) for name, found in configs.items()}
    if len(set(names.values())) > 1:
        shown = ", ".join(f"{name} is task={task}" for name, task in list(names.items())[:3])
        raise ValueError(f"runs of several tasks cannot be compared: {shown}; name those of one task")
    settings = {name: flatten(found) for name, found in configs.items()}
    given = config.compare.output
    output = COMPARISONS / digest(configs) if given is None else Path(given).expanduser()
    make_directory(output)
    (task, *_) = names.values()
    page = compare_runs(task, folders, output, differing_axes(settings))
    if page is None:
        raise ValueError(f"runs of task={task} have no tables to compare")
    table = differences_table(settings)
    page = Page([*page.tables, *([table] if table.rows else [])], page.remarks)
    page.write_markdown(output)
    print(f"{page.text}\n\ntables and plots in {output}")
    return 0


def chosen_runs(asked: Sequence[str]) -> list[Path]:
    """The run directories for paths, patterns, names in `outputs/` and beginnings of ids. Raises ValueError
    in one line for an entry without any run, for an ambiguous id, and for duplicate names."""
    found: dict[Path, None] = {}
    for text in asked:
        found |= dict.fromkeys(_runs_for(text))
    names: dict[str, Path] = {}
    for folder in found:
        other = names.setdefault(folder.name, folder)
        if other != folder:
            raise ValueError(f"runs={folder}: has the same name as {other}; rename one of the folders")
    return list(found)


def _runs_for(text: str) -> list[Path]:
    place = Path(text).expanduser()
    folders = [Path(path) for path in sorted(glob.glob(str(place)))] or [OUTPUTS / text]
    runs = [path for folder in folders for path in find_runs([folder]) if (path / CONFIG).is_file()]
    if runs:
        return runs
    by_id = [
        path.parent
        for path in sorted(OUTPUTS.glob(f"*/{CONFIG}"))
        if path.parent.name.rpartition("-")[2].startswith(text)
    ]
    if len(text) < FEWEST_DIGITS or not by_id:
        raise ValueError(
            f"runs={text}: not a run directory, and neither a name nor the beginning of an id in {OUTPUTS}/; "
            "task=runs lists what there is"
        )
    if len(by_id) > 1:
        raise ValueError(f"runs={text}: begins the ids of {some_names([path.name for path in by_id])}")
    return by_id


def differing_axes(configs: Mapping[str, Settings]) -> list[str]:
    """The keys in which configurations differ, or the name of a group with several choices; without the seed,
    and keys that change no result or follow from another key."""
    keys = [key for key in holders_by_key(configs) if changes_result(key) and key != SEED]
    keys = [key for key in keys if FOLLOWS.get(key) is None]
    groups = [key.removesuffix(".name") for key in keys if key.endswith(".name")]
    return [*groups, *(key for key in keys if not covered(key, groups))]


def differences_table(configs: Mapping[str, Settings]) -> Table:
    """The keys in which configurations differ, with each value and the runs that have it; for a group with
    several choices only the keys that all of them have."""
    found = holders_by_key(configs)
    groups = [key.removesuffix(".name") for key in found if key.endswith(".name")]
    rows = [
        [key, value, some_names(names)]
        for key, holders in found.items()
        if ABSENT not in holders or not covered(key, groups)
        for value, names in holders.items()
    ]
    return Table("How the configurations differ", ["key", "value", "runs"], rows, names=3)
