"""The doctor's page: findings in sections, as text or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from gradwire.harness.runtime.program import program

WIDTH = 110
MARKS = {"ok": " ", "missing": "-", "needed": "!"}

State = Literal["ok", "missing", "needed"]
"""`needed` means missing, and required even by `python run.py size=tiny`."""

Environment = Mapping[str, str]

Run = Callable[[list[str]], str | None]
"""Maps a command to its output; None if it is missing, fails, or takes too long."""


@dataclass(frozen=True)
class Finding:
    """One line of the page."""

    name: str
    value: str  # what was found, or that it is missing
    state: State = "ok"
    disables: str = ""  # what cannot be done without it
    remedy: str = ""  # how to get it, or to do without


@dataclass(frozen=True)
class FindingsSection:
    """Findings that belong together."""

    title: str
    findings: list[Finding]


def found_or_missing(
    name: str, value: str | None, disables: str, remedy: str, *, needed: bool = False
) -> Finding:
    """A finding that is `ok` if it has a `value`."""
    if value is not None:
        return Finding(name, value)
    return Finding(name, "missing", "needed" if needed else "missing", disables, remedy)


def render_text(sections: Sequence[FindingsSection]) -> str:
    """Aligned lines; each missing item is followed by what it disables and how to get it."""
    width = max(len(finding.name) for section in sections for finding in section.findings)
    blocks = []
    for section in sections:
        lines = [line for finding in section.findings for line in _lines(finding, width)]
        blocks.append("\n".join([section.title, *lines]))
    return "\n\n".join([*blocks, verdict(sections)])


def render_json(sections: Sequence[FindingsSection]) -> str:
    """The findings by section, and whether the basic run is possible."""
    content = {
        "can_run": not lacking(sections),
        "sections": {section.title: [asdict(item) for item in section.findings] for section in sections},
    }
    return json.dumps(content, indent=2)


def lacking(sections: Sequence[FindingsSection]) -> list[str]:
    """The names of missing items that the basic run needs."""
    return [item.name for section in sections for item in section.findings if item.state == "needed"]


def verdict(sections: Sequence[FindingsSection]) -> str:
    """The line on whether the basic run is possible."""
    names = lacking(sections)
    if names:
        return f"{program()} size=tiny cannot run here: see {', '.join(names)}"
    return f"{program()} size=tiny can run here"


def _lines(finding: Finding, width: int) -> list[str]:
    indent = " " * (width + 4)
    head = f"{MARKS[finding.state]} {finding.name:<{width}}  "
    text = finding.value
    if finding.state != "ok":
        text += f"; disables {finding.disables}; remedy: {finding.remedy}"
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
