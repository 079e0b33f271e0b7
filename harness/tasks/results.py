"""`make results`: runs sweeps one after another within a time limit and copies their records to `results/`.

python -m gradwire.harness.tasks.results dynamiq_table4 dynamiq_fig8 --minutes 20 --size small

Each sweep is a command of its own, `run.py sweeps=<name> size=<size> sweep.minutes=<time left>`, which skips
finished cells. Its record, tables, and the plots that the report shows go to `results/<sweep>/<size>/`, even
if it is not complete; then `task=report` rewrites the report.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from gradwire.harness.files.compressed import ENDING, compressed
from gradwire.harness.record.directory import PROFILES
from gradwire.harness.report.papers import read_papers
from gradwire.harness.report.pictures import PRINT
from gradwire.harness.report.sweep_record import FILE
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.sweeps.folder import records_of
from gradwire.harness.sweeps.run import STOPPED

KEPT = (".json", ".csv", ".md", ENDING)
"""Suffixes of the copied files of records and tables."""

PACKED = "table.json"
"""The table that no page shows, which is kept compressed."""

PICTURES = (f"{PRINT}.svg", f"{PRINT}.png")
"""Endings of the copied plots, of which there is one of each: an SVG, which has both pages' colours, or a PNG
where there is none."""

INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2))
"""The exit codes of a command that was asked to stop by a signal."""

ROOT = conf_directory().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all sweeps are complete, 75 if the time is over, else the first failure's exit code."""
    asked = _parser().parse_args(arguments)
    began, codes = time.monotonic(), list[int]()
    for sweep in asked.sweeps:
        left = None if asked.minutes is None else asked.minutes - (time.monotonic() - began) / 60
        if left is not None and left <= 0:
            print(f"results: no time is left for {sweep}; the same command continues with it")
            codes.append(STOPPED)
            continue
        limit = [] if left is None else [f"sweep.minutes={left:.2f}"]
        before = written(sweep, asked.size)
        codes.append(_command(f"sweeps={sweep}", f"size={asked.size}", *limit, *asked.overrides))
        if codes[-1] in INTERRUPTED:
            return codes[-1]
        found = [folder for folder, at in written(sweep, asked.size).items() if before.get(folder) != at]
        if not found:
            print(f"results: {sweep} has left no record")
        for output in found:  # one: a sweep writes its record to a single folder
            publish(output, ROOT / "results" / sweep / asked.size, _plots_of(sweep))
    codes.append(_command("task=report"))
    return next((code for code in codes if code not in (0, STOPPED)), STOPPED if STOPPED in codes else 0)


def written(sweep: str, size: str) -> dict[Path, int]:
    """The folders of a sweep at a size, whatever overrides its cells had, with the time at which each record
    was written [ns]."""
    return {path.parent: path.stat().st_mtime_ns for path in records_of(sweep, size)}


def publish(output: Path, target: Path, plots: Sequence[str] = ("*",)) -> list[Path]:
    """Replaces a sweep's published record, tables and `plots` (names, `*` for any part); returns the new
    files. Profiles, which serve unfinished runs, are left out."""
    if not (output / FILE).is_file():
        print(f"results: {output} has no record")
        return []
    files = [path for path in sorted(output.rglob("*")) if path.is_file() and path.parent.name != PROFILES]
    found = [path for path in files if _is_kept(path, plots)]
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    for path in found:
        _keep(path, new / path.relative_to(output))
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    kept = sorted(path for path in target.rglob("*") if path.is_file())
    print(f"results: {len(kept)} files in {target}")
    return kept


def _keep(path: Path, file: Path) -> None:
    """Copies `path` to `file`, or compresses it beside."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if path.name == PACKED:
        file.with_name(f"{file.name}{ENDING}").write_bytes(compressed(path.read_text()))
    else:
        shutil.copyfile(path, file)


def _is_kept(path: Path, plots: Sequence[str]) -> bool:
    for ending in PICTURES:
        name = path.name.removesuffix(ending)
        if name != path.name:
            vector = path.with_name(f"{name}{PRINT}.svg")
            is_best = ending != f"{PRINT}.png" or not vector.is_file()
            return is_best and any(fnmatch(name, wanted) for wanted in plots)
    return path.suffix in KEPT


def _plots_of(sweep: str) -> Sequence[str]:
    """The plots of a sweep that papers' items show; all of a sweep that no paper speaks of."""
    items = [item for paper in read_papers(ROOT / "results") for item in paper.items if item.sweep == sweep]
    return [name for item in items for name in item.plots] if items else ("*",)


def _command(*overrides: str) -> int:
    print(f"results: run.py {' '.join(overrides)}", flush=True)
    with subprocess.Popen([sys.executable, str(ROOT / "run.py"), *overrides]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the command has got it from the terminal, too, and cleans up
                continue


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make results", description=__doc__)
    parser.add_argument("sweeps", nargs="+", metavar="sweep", help="a name in sweeps/")
    parser.add_argument("--minutes", type=float, help="of running cells, in all")
    parser.add_argument("--size", default="small")
    parser.add_argument(
        "--override",
        dest="overrides",
        action="append",
        default=[],
        metavar="key=value",
        help="for all sweeps",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
