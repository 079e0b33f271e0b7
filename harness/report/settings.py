"""The settings of `task=report`: `report.*`."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.record.settings import Configuration


@dataclass(frozen=True)
class ReportConfig:
    """The folder of the records, and that of the pages."""

    folder: str = "results"  # records of sweeps at any depth, papers/ and reference/
    output: str | None = None  # the folder of README.md and report.html; null: the one above


@dataclass(frozen=True, kw_only=True)
class ReportTask(Configuration):
    """The settings of a report from records."""

    report: ReportConfig
