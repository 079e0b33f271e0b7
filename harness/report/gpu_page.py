"""The page of what was measured on one GPU: the part of a README between two lines, and a plot beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import read_text
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.gpu_record import REMEDY, GpuRecord, OperationTime, OtherTime
from gradwire.harness.report.names import name_of
from gradwire.harness.report.reference import Reference, value_of
from gradwire.harness.report.series import Panel, Rules, Series, series_plot
from gradwire.harness.report.style import Hue, LineStyle
from gradwire.harness.report.tables import Table, number, render_markdown
from gradwire.harness.report.views import row_ticks, x_from, y_from

README = "README.md"
BEGIN, END = "<!-- measured by make gpu, made by task=report -->", "<!-- end of what make gpu measured -->"
DTYPES = ("bfloat16", "float32")
LOOKS: dict[str, tuple[Hue, str, float]] = {
    "bfloat16": ("vermilion", "s", -0.16),
    "float32": ("blue", "o", 0.16),
}
"""Hue, marker and offset from the family's line."""
FAMILIES = {
    "bitpack": "packing bits",
    "fp32": "float32",
    "hadamard": "Hadamard transform",
    "levels": "coding levels",
    "metadata": "metadata",
    "mxfp": "MXFP8, 6, 4",
    "signs": "coding signs",
}
"""Families of operations that are not named as a codec."""
LINE, MARGIN = 0.2, 0.55
"""Inches of a family's line, and of the axis below."""
DIGITS = 3
FAR = 0.7
"""Operations whose floor is a smaller share of their time are listed first."""

PRINTED_IN = "sdp4bit/table5"
PRINTED = {
    "quantize w/o Hadamard": "linear.quantize.4",
    "quantize w/ Hadamard": "linear.quantize_hadamard.4",
    "dequantize w/o Hadamard": "linear.dequantize.4",
    "dequantize w/ Hadamard": "linear.dequantize_hadamard.4",
}
"""Methods of that table, the only one of kernels' speeds that the papers print, and our operations."""


def write_gpu_page(record: GpuRecord, reference: Path, output: Path) -> list[Path]:
    """Writes README and plot to the folder `output`; returns the files. Text outside of the README's two
    lines stays.

    `reference` is the folder of the papers' printed figures. Raises ValueError in one line for a README
    without these lines.
    """
    output.mkdir(parents=True, exist_ok=True)
    plots = write_plots([shares_plot(record)], output, vector_alone=True) if record.operations else []
    path = output / README
    picture = next((plot.name for plot in plots), None)
    write_atomically(path, _with_part(path, page(record, reference, picture), record))
    return [path, *plots]


def page(record: GpuRecord, reference: Path, picture: str | None = None) -> str:
    """The generated part of the README."""
    parts = [
        render_markdown(_machine_table(record)),
        render_markdown(_checks_table(record)) if record.checks else "",
        _operations(record, picture),
        render_markdown(_others_table(record)) if record.others else "",
        _printed(record, reference),
        render_markdown(_rounds_table(record)) if record.rounds else "",
        render_markdown(_counters_table(record)) if record.counters else "",
        render_markdown(_training_table(record)) if record.training else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _with_part(path: Path, part: str, record: GpuRecord) -> str:
    if not os.path.lexists(path):
        return f"# What codecs cost on one {record.machine.device}\n\n{BEGIN}\n{part}\n{END}\n"
    before, begin, rest = read_text(path, remedy=REMEDY, inside=path.parent).partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN} and {END}; add them where the figures belong")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def _machine_table(record: GpuRecord) -> Table:
    machine = record.machine
    rows = {
        "device": ", ".join(part for part in (machine.device, machine.memory) if part),
        "driver": machine.driver,
        "date": machine.date,
        "commit": machine.commit,
        "software": f"PyTorch {machine.torch}" + (f", Python {machine.python}" if machine.python else ""),
        "kernels": machine.kernels,
        "commands": "; ".join(machine.commands),
        **{f"copy, {dtype}": f"{rate / 1e12:.2f} TB/s" for dtype, rate in _copies(record).items()},
    }
    return Table("Machine", ["", "measured"], [[name, text] for name, text in rows.items()], 2)


def _copies(record: GpuRecord) -> dict[str, float]:
    """The median rate of copies of each type, in bytes read and written per second."""
    found = dict[str, float]()
    for dtype in DTYPES:
        own = [each.copy_bytes_per_s for each in record.operations if each.dtype == dtype]
        rates = sorted(rate for rate in own if rate is not None)
        if rates:
            found[dtype] = rates[len(rates) // 2]
    return found


def _checks_table(record: GpuRecord) -> Table:
    return Table("Tests", ["", "result"], [[name, text] for name, text in record.checks.items()], 2)


def _operations(record: GpuRecord, picture: str | None) -> str:
    """The tables of operations, those far from a copy's bandwidth first."""
    if not record.operations:
        return ""
    ours = [each for each in record.operations if each.implementation == "cuda"]
    names = list(dict.fromkeys(each.operation for each in ours))
    far = {each.operation for each in ours if each.share is not None and each.share < FAR}
    text = (
        "### Operations\n\nAn operation's floor is the time of a copy of the bytes that it has to read and "
        "write; its share is the floor divided by its time. Milliseconds for 1e9 coordinates, from the "
        "shortest of each row's repetitions."
    )
    image = f"![share of a copy's bandwidth by family]({picture})" if picture else ""
    tables = [
        _operations_table(
            record, f"Operations below {FAR} of a copy's bandwidth", [n for n in names if n in far]
        ),
        _operations_table(record, "All other operations", [n for n in names if n not in far]),
    ]
    lines = [f"- not timed: {line}" for line in record.failed]
    return "\n\n".join(part for part in [text, image, *tables, "\n".join(lines)] if part)


def _operations_table(record: GpuRecord, title: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    header = ["operation", *(f"{dtype}: {what}" for dtype in DTYPES for what in ("ms", "floor", "share"))]
    return render_markdown(Table(title, header, [[name, *_cells(record, name)] for name in names]))


def _cells(record: GpuRecord, operation: str) -> Iterable[str]:
    for dtype in DTYPES:
        found = record.time(operation, dtype)
        figures = (found.ms, found.floor_ms, found.share) if found is not None else (None, None, None)
        yield from (number(figure, DIGITS) for figure in figures)


def _others_table(record: GpuRecord) -> Table:
    peers = [
        OtherTime(each.implementation, each.operation, each.operation, each.dtype, each.ns_per_coordinate)
        for each in record.operations
        if each.implementation != "cuda"
    ]
    header = ["operation", "of", "type", "ms for 1e9", "ours", "ours, ms", "theirs / ours"]
    rows = [_beside(record, each) for each in (*record.others, *peers)]
    return Table("Beside code that is not ours, on this device", header, rows, 3)


def _beside(record: GpuRecord, other: OtherTime) -> list[str]:
    ours, theirs = record.time(other.counterpart, other.dtype), 1e3 * other.ns_per_coordinate
    figures = (ours.ms, theirs / ours.ms) if ours is not None else (None, None)
    return [
        other.operation,
        other.implementation,
        other.dtype,
        number(theirs, DIGITS),
        other.counterpart,
        *(number(figure, DIGITS) for figure in figures),
    ]


def _printed(record: GpuRecord, reference: Path) -> str:
    """The authors' printed throughputs on this card, beside ours; a sentence if they print none."""
    known = (reference / f"{PRINTED_IN}.csv").is_file()
    printed = Reference(reference).rows(PRINTED_IN) if known else []
    shown = [row for row in printed if _same_card(record.machine.device, row["setting"])]
    if not shown:
        return "The papers print no time of a kernel on this card."
    rows = list[list[str]]()
    for method, operation in PRINTED.items():
        best = max((value_of(row) or 0.0 for row in shown if row["method"] == method), default=None)
        for dtype in DTYPES:
            ours = record.time(operation, dtype)
            if ours is not None:
                rows.append(
                    [method, dtype, number(best, DIGITS), operation, number(ours.values_gb_per_s, DIGITS)]
                )
    header = ["SDP4Bit Table 5, largest", "our bucket", "printed, GB/s", "ours", "GB/s of the bucket"]
    return render_markdown(Table("Beside what the authors print for this card", header, rows, 2))


def _same_card(device: str, setting: str) -> bool:
    """True if a printed setting names the device's model, as `A100`."""
    models = re.findall(r"\b[A-Z]\d{2,3}\b", device)
    return any(re.search(rf"\b{model}\b", setting) for model in models)


ROUND_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "codec": lambda line: str(line["codec"]),
    "ranks": lambda line: str(line["n"]),
    "topology": lambda line: str(line["topology"]),
    "coordinates": lambda line: f"{line['coordinates']:,}" if "coordinates" in line else "",
    "step by step: ms, device": lambda line: number(line.get("eager_gpu_ms_per_rank"), DIGITS),
    "host": lambda line: number(line.get("eager_host_ms_per_rank"), DIGITS),
    "captured: ms, device": lambda line: number(line.get("graph_gpu_ms_per_rank"), DIGITS),
    "host ": lambda line: number(line.get("graph_host_ms_per_rank"), DIGITS),
    "note": lambda line: str(line.get("error", "")),
}


def _rounds_table(record: GpuRecord) -> Table:
    title = "Rounds of a bucket, per rank; all ranks on this device, no network"
    rows = [[cell(line) for cell in ROUND_COLUMNS.values()] for line in record.rounds]
    return Table(title, list(ROUND_COLUMNS), rows, 3)


def _counters_table(record: GpuRecord) -> Table:
    header = list(dict.fromkeys(key for line in record.counters for key in line))
    rows = [[line.get(key) or "" for key in header] for line in record.counters]
    return Table("Kernels under Nsight Compute", [key.replace("_", " ") for key in header], rows)


def _training_table(record: GpuRecord) -> Table:
    header = list(dict.fromkeys(key for line in record.training.values() for key in line))
    rows = [
        [
            codec,
            *(
                number(value, DIGITS) if isinstance(value := line.get(key), float) else str(value)
                for key in header
            ),
        ]
        for codec, line in record.training.items()
    ]
    return Table(
        "Training, all ranks on this device", ["codec", *(k.replace("_", " ") for k in header)], rows
    )


def shares_plot(record: GpuRecord) -> Plot:
    """A point for each operation: how much of a copy's bandwidth it reaches, by family of operations."""
    ours = [each for each in record.operations if each.implementation == "cuda"]
    families = sorted({each.family for each in ours}, reverse=True)
    place = {family: index for index, family in enumerate(families)}
    series: list[Any] = [Rules([1.0], line="-", label="a copy of the same bytes")]
    for dtype in DTYPES:
        hue, marker, shift = LOOKS[dtype]
        points = _points([each for each in ours if each.dtype == dtype], place, shift)
        series.append(Series.through(points, LineStyle(hue, "none", marker), dtype, size=2.5))
    views = [
        row_ticks(list(place.values()), [family_name(each) for each in families]),
        y_from(-0.7, len(families) - 0.3),
        x_from(0),
    ]
    panel = Panel(series, x_label="a copy's time divided by the operation's", views=views)
    title = f"{record.machine.device} · {max((each.numel for each in ours), default=0):,} coordinates"
    return series_plot("operations", title, [panel], (MARGIN + LINE * len(families),))


def family_name(family: str) -> str:
    """A family of operations in words: its codec's name, or what its operations do."""
    return FAMILIES.get(family) or name_of("codec", family)


def _points(
    times: Iterable[OperationTime], place: Mapping[str, int], shift: float
) -> list[tuple[float, float]]:
    return [(each.share, place[each.family] + shift) for each in times if each.share is not None]
