"""Derives the tables of results/README.md anew from the kept rows, with none of the report's code: medians,
ranges, changes by seed with their interval, times to accuracy; compared to the last digit printed."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import yaml

Entry = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[3] / "results"
# Student's t by the number of seeds: 95 % within ± t · s / √n.
T95 = {2: 12.706205, 3: 4.302653, 4: 3.182446, 5: 2.776445, 6: 2.570582, 8: 2.364624, 10: 2.262157}
UNITS = {" ms": 1e3, " %": 100.0, " s": 1.0, "": 1.0}
UPWARD = ("accuracy", "matthews")
NUMBER = re.compile(r"-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|∞)")


class Checked(NamedTuple):
    """A printed text; `problem` is empty where it is what was derived, None if nothing was."""

    where: str
    printed: str
    numbers: int
    problem: str | None


class UnknownError(Exception):
    """A figure that this script does not derive."""


class Record:
    """A sweep's cells and figures."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "sweep.json").read_text())
        self.axes, self.cells, self.settings = about["axes"], about["cells"], about["settings"]
        with gzip.open(folder / "values.csv.gz", "rt", newline="") as file:
            self.found: dict[tuple[str, str], list[dict[str, str]]] = {}
            for row in csv.DictReader(file):
                self.found.setdefault((row["cell"], row["metric"]), []).append(row)

    def key(self, name: str) -> str:
        common = sorted({key.removesuffix(".name") for own in self.settings.values() for key in own})
        for keys in (self.axes, common):
            whole = [key for key in keys if name in (key, key.replace(".", "_"))]
            if found := whole or [key for key in keys if name == key.split(".")[-1]]:
                return str(found[0])
        raise UnknownError(f"no axis {name}")

    def setting(self, cell: Entry, key: str) -> Any:
        common = self.settings.get(cell["task"], {})
        return cell["axes"][key] if key in cell["axes"] else common.get(f"{key}.name", common.get(key))

    def chosen(self, metric: str, selection: Entry) -> list[dict[str, Any]]:
        """The cells that have the metric and the values; they differ in the seed alone."""
        cells = [cell for cell in self.cells if selection.get("task", cell["task"]) == cell["task"]]
        for name in selection.keys() - {"case", "task"}:
            cells = [each for each in cells if alike(self.setting(each, self.key(name)), selection[name])]
        having = {cell["task"] for cell in cells if (cell["label"], metric) in self.found}
        cells = [cell for cell in cells if cell["task"] in having]  # with those that failed
        if len({json.dumps(cell["axes"], sort_keys=True) for cell in cells}) != 1:
            raise UnknownError(f"{len(cells)} cells")
        return cells

    def points(self, cell: Entry, metric: str) -> list[tuple[int, float]]:
        rows = [row for row in self.found.get((cell["label"], metric), []) if row["step"]]
        return sorted((int(row["step"]), float(row["value"])) for row in rows)

    def whole(self, metric: str, selection: Entry) -> dict[Any, float]:
        """The metric by seed: of runs, else the median over steps or repeats; failures are infinite."""
        case, found = str(selection.get("case", "")), dict[Any, float]()
        for cell in self.chosen(metric, selection):
            own = [row for row in self.found.get((cell["label"], metric), []) if row["case"] == case]
            own = [row for row in own if not row["step"]] or own
            if not own and (cell["status"], metric) != ("failed", "final_metric"):
                raise UnknownError(f"no {metric}")
            bad = -math.inf if cell["metric"] in UPWARD else math.inf
            found[cell["seed"]] = median(float(row["value"]) for row in own) if own else bad
        repeats = {row["seed"]: float(row["value"]) for row in own}  # the seeds of a run alone
        return repeats if len(found) == 1 and len(repeats) == len(own) > 1 else found

    def last(self, metric: str, selection: Entry) -> dict[Any, float]:
        return {own["seed"]: self.points(own, metric)[-1][1] for own in self.chosen(metric, selection)}

    def tta(self, factor: float, selection: Entry) -> dict[Any, float]:
        """Seconds to the first evaluation that reaches factor × the baseline's median final metric."""
        cells = self.chosen("final_metric", selection)
        metric = next(cell["metric"] for cell in cells if cell["metric"])
        apart, axes = ("codec", "experiment"), cells[0]["axes"]
        others = {key: value for key, value in axes.items() if key.split(".")[0] not in apart}
        target, found = factor * median(self._baseline(others).values()), dict[Any, float]()
        for cell in cells:
            clock = dict(self.points(cell, "train_time_s"))
            reached = [
                clock[step]
                for step, value in self.points(cell, metric)
                if step in clock and (value >= target if metric in UPWARD else value <= target)
            ]
            found[cell["seed"]] = reached[0] if reached else math.inf
        return found

    def _baseline(self, others: Entry) -> dict[Any, float]:
        """The final metrics of the run that sets targets: BF16, else what is exact."""
        plain = {key: value for key, value in others.items() if value is not None and "." not in key}
        for name, value in (("codec", "bf16"), ("codec", "fp32"), ("experiment", "sharded_baseline")):
            for rest in (others, plain):
                with suppress(UnknownError):
                    return self.whole("final_metric", {**rest, name: value})
        raise UnknownError("no baseline")


def alike(found: Any, wanted: Any) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return found == wanted or str(found) == str(wanted)


def agrees(printed: str, value: float) -> bool:
    """True if a value rounds to a printed number."""
    if printed == "∞" or math.isinf(value):
        return printed == "∞" and value == math.inf
    digits, _, power = printed.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    if "." not in digits and float(digits) >= 1000:  # whole numbers of more digits than are shown
        unit = 10.0 ** max(0, len(digits) - 4)
    return abs(float(printed) - value) <= 0.5001 * unit + 1e-12 * abs(value)


def spread_problem(text: str, by_seed: dict[Any, float], times: float) -> str:
    values = sorted(times * (math.inf if math.isnan(value) else value) for value in by_seed.values())
    low, middle, high = values[0], median(values), values[-1]
    if text == "not reached":
        return "" if middle == math.inf else f"reached: {middle}"
    shown = NUMBER.findall(text.replace("–", " "))
    shown = shown * 3 if len(shown) == 1 else shown  # without a range, which is then too small to be seen
    good = len(shown) == 3 and all(map(agrees, shown, [middle, low, high]))
    return "" if good else f"derived {middle:.6g} ({low:.6g} to {high:.6g})"


def change_problem(text: str, own: dict[Any, float], base: dict[Any, float]) -> str:
    changes = [100 * (own[seed] / base[seed] - 1) for seed in own if seed in base]
    margin = T95[len(changes)] * stdev(changes) / math.sqrt(len(changes))
    good = all(map(agrees, NUMBER.findall(text), (fmean(changes), margin)))
    return "" if good else f"derived {fmean(changes):+.4f} ± {margin:.4f}"


def printed_rows(page: str, title: str) -> dict[str, list[str]]:
    """The cells of ours in the table below a heading, by the name of the row."""
    _, found, rest = page.partition(f"\n#### {title}: ")
    lines = [line for line in re.split("\n(?:####|<details)", rest)[0].splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split(" | ")] for line in lines]
    ours = [index for index, cell in enumerate(split[0] if split else []) if index and cell[:5] != "paper"]
    return {cells[0].strip("| "): [cells[index] for index in ours] for cells in split[2:]} if found else {}


def checked() -> Iterator[Checked]:
    """Every number of ours in the tables of the page."""
    page = (RESULTS / "README.md").read_text()
    for path in sorted((RESULTS / "papers").glob("*.yaml")):
        paper = yaml.safe_load(path.read_text())
        for name, item in paper["items"].items():
            folders = sorted((RESULTS / str(item.get("sweep"))).glob("*/sweep.json"))
            if item.get("table") and folders:
                record = Record(folders[-1].parent)
                yield from _table(f"{paper['name']} {name}", item["table"], record, page)


def _table(title: str, layout: Entry, record: Record, page: str) -> Iterator[Checked]:
    for (name, row), cells in zip(layout["rows"].items(), printed_rows(page, title).values(), strict=False):
        for (heading, column), text in zip(layout["columns"].items(), cells, strict=False):
            text = re.sub(r"\s*\((?:measured|emulated|modelled)\)$", "", text).rstrip("†+ ").replace("†", "")
            if text not in ("–", ""):
                count = 1 if text == "not reached" else len(NUMBER.findall(text.replace("–", " ")))
                try:
                    problem = _problem(record, layout, row or {}, column or {}, text)
                except (UnknownError, KeyError, StopIteration, IndexError):
                    problem = None
                yield Checked(f"{title}, {name}, {heading}", text, count, problem)


def _problem(record: Record, layout: Entry, row: Entry, column: Entry, text: str) -> str:
    mine, theirs = row.get("ours", {}), column.get("ours", {})
    factor = column.get("tta", row.get("tta"))
    metric = column.get("metric") or row.get("metric") or layout.get("metric") or "final_metric"
    read = record.last if column.get("last") or row.get("last") else record.whole
    found = record.tta(factor, mine | theirs) if factor else read(metric, mine | theirs)
    if column.get("change"):
        return change_problem(text, found, read(metric, theirs | layout["baseline"]["ours"]))
    times = next(UNITS[unit] for unit in UNITS if text.endswith(unit))
    return spread_problem(text, found, times * (column.get("times") or row.get("times") or 1.0))
