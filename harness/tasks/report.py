"""`task=report`: the papers' claims, tables and figures beside our records, on two pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gradwire.codecs.fields import default_of
from gradwire.harness.config.store import group_schemas
from gradwire.harness.report.claims.check import KnownSweep
from gradwire.harness.report.claims.claims import counted
from gradwire.harness.report.configs import flatten
from gradwire.harness.report.evaluations import collect
from gradwire.harness.report.page import write_pages
from gradwire.harness.report.settings import ReportTask
from gradwire.harness.runtime.conf import conf_directory

OVERRIDE = "override /"


def run(config: ReportTask) -> int:
    """Writes both pages from the records; returns 1 if a record was left out, having named it."""
    folder = Path(config.report.folder).expanduser()
    if not folder.is_dir():
        raise ValueError(f"report.folder={config.report.folder} is no folder; use the one with the records")
    output = Path(config.report.output).expanduser() if config.report.output is not None else folder
    found = collect(folder, known_sweeps(conf_directory() / "sweeps"))
    files = write_pages(found, output)
    for line in found.left_out:
        print(f"left out: {line}")
    for section in found.sections:
        counts = ", ".join(f"{number} {ruling}" for ruling, number in counted(section.verdicts).items())
        print(f"{section.paper.name}: {len(section.verdicts)} claims: {counts}")
    print(f"{len(found.records)} records of sweeps -> {' and '.join(map(str, files))}")
    return int(bool(found.left_out))


def known_sweeps(folder: Path) -> dict[str, KnownSweep]:
    """What the sweeps that can run have, by name, as their files say: axes and values, at any size."""
    files = {path.stem: _content(path) for path in sorted(folder.glob("*.yaml"))}
    known = {name: _known(content) for name, content in files.items()}
    for name, content in files.items():
        for needed in _sweeper(content).get("needs", {}).values():
            # The axes of the cells that it takes from tell its own cells apart, too.
            for key, values in known[needed].axes.items() if needed in known else ():
                known[name].add_axis(key, values)
    return known


def _content(path: Path) -> Mapping[str, Any]:
    found = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def _known(content: Mapping[str, Any]) -> KnownSweep:
    known = KnownSweep()
    for group, choice in _choices(content):
        known.shared.setdefault(group, []).append(choice)
    for key, value in flatten(
        {key: value for key, value in content.items() if key not in NO_SETTINGS}
    ).items():
        known.shared.setdefault(key, []).append(value)
    sweeper = _sweeper(content)
    cases = [case for found in sweeper.get("cases", {}).values() for case in found]
    for case in cases:
        for key, value in case.items():
            known.add_axis(str(key), [word for each in _listed(value) for word in _words(each)])
    for key in list(known.axes):
        known.add_axis(key, [value for case in cases if key not in case for value in _defaults(key, case)])
    for common in sweeper.get("common", {}).values():
        for key, value in common.items():
            known.shared.setdefault(str(key), []).append(value)
    return known


def _words(value: Any) -> list[Any]:
    """A value of a case; what is taken from another sweep's cells in the words of labels."""
    if not isinstance(value, Mapping):
        return [value]
    what = str(value.get("take"))
    found = [f"step{step}" for step in _listed(value.get("step", []))] or [what]
    return [f"{value.get('from')}:{each}" for each in found]


def _defaults(key: str, case: Mapping[str, Any]) -> Iterator[Any]:
    """The values that a case leaves a field of the groups' choices that it makes: `codec.group`."""
    group, _, name = key.partition(".")
    for choice in _listed(case.get(group, [])):
        schema = group_schemas().get(group, {}).get(choice)
        if schema is not None and not isinstance(schema, type):
            yield getattr(schema, name, None)  # a preset
            continue
        for field in dataclasses.fields(schema) if schema is not None else ():
            if field.name == name:
                yield default_of(field)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


NO_SETTINGS = ("defaults", "hydra")


def _sweeper(content: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = content.get("hydra", {}).get("sweeper", {})
    return found


def _choices(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The choices of groups that a file's defaults list makes."""
    entries = [entry for entry in content.get("defaults", []) if isinstance(entry, Mapping)]
    pairs = [pair for entry in entries for pair in entry.items()]
    return [(key.removeprefix(OVERRIDE), value) for key, value in pairs if key.startswith(OVERRIDE)]
