"""`task=report`: the papers' claims, tables and figures next to the records, on two pages."""

from __future__ import annotations

from pathlib import Path

from gradwire.harness.report.evaluations import REFERENCE, collect
from gradwire.harness.report.gpu_page import write_gpu_page
from gradwire.harness.report.page import README, make_output, write_front, write_pages
from gradwire.harness.report.settings import ReportTask
from gradwire.harness.report.summary import counted, informative
from gradwire.harness.sweeps.known import known_sweeps


def run(config: ReportTask) -> int:
    """Writes both pages from the records, and one for each GPU; returns 1 if a record was left out, after
    reporting it."""
    folder = Path(config.report.folder).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"report.folder={config.report.folder} is not a folder; use the one with the records"
        )
    output = Path(config.report.output).expanduser() if config.report.output is not None else folder
    make_output(output)
    found = collect(folder, known_sweeps())
    files = write_pages(found, output)
    if output == folder:
        files += write_front(found, folder.parent / README)
    for gpu in found.gpus:
        files.append(write_gpu_page(gpu, folder / REFERENCE, output / gpu.folder.relative_to(folder))[0])
    for line in found.left_out:
        print(f"left out: {line}")
    for section in found.sections:
        counts = ", ".join(f"{number} {word}" for word, number in counted(section.verdicts).items())
        told = informative(section.verdicts)
        print(f"{section.paper.name}: {told} ({len(section.verdicts)} claims: {counts})")
    print(f"{len(found.records)} records of sweeps -> {' and '.join(map(str, files))}")
    return int(bool(found.left_out))
