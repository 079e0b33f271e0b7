"""`task=doctor`: one page about this machine, what is missing, and what that disables."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gradwire.harness.config.tasks import DoctorTask
from gradwire.harness.doctor.devices import devices
from gradwire.harness.doctor.findings import Finding, FindingsSection, lacking, render_json, render_text
from gradwire.harness.doctor.hubs import hubs
from gradwire.harness.doctor.software import software, sources
from gradwire.harness.doctor.storage import storage
from gradwire.harness.doctor.tools import shaping, tools

FORMATS = {"text": render_text, "json": render_json}

PROBES: tuple[Callable[[], FindingsSection], ...] = (
    sources,
    software,
    devices,
    tools,
    shaping,
    hubs,
    storage,
)


def run(config: DoctorTask) -> int:
    """Prints the page; returns 1 if something needed by `python run.py size=tiny` is missing."""
    with ThreadPoolExecutor() as together:
        sections = list(together.map(examined, PROBES))
    print(FORMATS[config.format](sections))
    return int(bool(lacking(sections)))


def examined(probe: Callable[[], FindingsSection]) -> FindingsSection:
    """The findings of `probe`; a probe that fails does not affect the others."""
    try:
        return probe()
    except Exception as error:
        reason = f"could not be examined: {type(error).__name__}: {' '.join(str(error).split())}"
        return FindingsSection(
            probe.__name__, [Finding(probe.__name__, reason, "missing", "nothing by itself", "report it")]
        )
