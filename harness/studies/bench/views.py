"""The benchmark's tables, as text, and its plots of nanoseconds per coordinate, next to those of a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwire.harness.network.configured import AS_IT_IS
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.series import Panel, Series, series_plot
from gradwire.harness.report.style import Hue, LineStyle
from gradwire.harness.report.tables import Column, Table, figures_table, number, render_text
from gradwire.harness.report.views import plain_log_x, row_ticks, y_from
from gradwire.harness.studies.bench.bus import BusRow
from gradwire.harness.studies.bench.host import HostRow
from gradwire.harness.studies.bench.measure import DEFAULT
from gradwire.harness.studies.bench.papers import RingCost, SmoothingSpeed, ring_costs, smoothing
from gradwire.harness.studies.bench.study import BenchRow
from gradwire.harness.studies.comparison import listed
from gradwire.harness.timing.measure.metric import quotient
from gradwire.harness.timing.measure.metrics import METRICS

DIGITS = 3

WIDTH = 170


def text(
    rows: Sequence[BenchRow], workers: int, buckets: Sequence[HostRow] = (), buses: Sequence[BusRow] = ()
) -> str:
    """Returns all tables; those of a whole ring are for `workers` workers."""
    tables = [
        speed_table(rows),
        ring_table(ring_costs(rows), workers),
        smoothing_table(smoothing(rows)),
        host_table(buckets),
        bus_table(buses),
    ]
    return "\n\n".join(render_text(table, WIDTH) for table in tables if table.rows)


def speed_table(rows: Sequence[BenchRow]) -> Table:
    """A table with one line per row."""
    names = ("operation", "dtype", "coordinates", "kernels", "threads")
    lines = [([*row.names, str(row.threads)], row.values) for row in rows]
    fields = type(rows[0]).columns() if rows else BenchRow.columns()
    columns = [Column(metric, field) for field, metric in fields.items()]
    table = figures_table("Operations: shortest time of each", names, lines, columns)
    peers = [" ".join(number(ratio, DIGITS) for ratio in row.speedup_to_peers.values()) for row in rows]
    cells = [[*line, others or "–"] for line, others in zip(table.rows, peers, strict=True)]
    return Table(table.title, [*table.header, "× peer"], cells)


def ring_table(costs: Sequence[RingCost], workers: int) -> Table:
    """Memory traffic next to the paper's formula, and the time of a ring."""
    title = "A ring all-reduce: memory traffic, AR = (n − 1)/n, and time of the codec"
    columns: dict[str, Callable[[RingCost], str]] = {
        "codec": lambda cost: cost.codec,
        "dtype": lambda cost: cost.dtype,
        "coordinates": lambda cost: f"{cost.numel:,}",
        "kernels": lambda cost: cost.implementation,
        "bytes/coordinate": lambda cost: _formula(cost.bytes_const, cost.bytes_slope),
        f"at {workers} workers": lambda cost: number(cost.at(workers)["bytes"], DIGITS),
        "DynamiQ Table 2": lambda cost: _formula(cost.paper_const, cost.paper_slope),
        f"at {workers} workers ": lambda cost: number(cost.at(workers)["paper_bytes"], DIGITS),
        f"ns/coordinate at {workers} workers": lambda cost: number(cost.at(workers)["ns"], DIGITS),
    }
    return listed(title, costs, columns)


def _formula(const: float | None, slope: float | None) -> str:
    if const is None or slope is None:
        return "–"
    return f"{const:.2f} {'−' if slope < 0 else '+'} {abs(slope):.2f} AR"


def smoothing_table(pairs: Sequence[SmoothingSpeed]) -> Table:
    """Throughput with the Hadamard transform next to throughput without."""
    columns: dict[str, Callable[[SmoothingSpeed], str]] = {
        "operation": lambda pair: pair.operation,
        "dtype": lambda pair: pair.dtype,
        "coordinates": lambda pair: f"{pair.numel:,}",
        "kernels": lambda pair: pair.implementation,
        "GB/s without": lambda pair: number(pair.without_gb_per_s, DIGITS),
        "GB/s with": lambda pair: number(pair.with_gb_per_s, DIGITS),
        "ratio": lambda pair: number(pair.share, DIGITS),
        "SDP4Bit Table 5, A100: ratio": lambda pair: number(pair.paper_share, DIGITS),
    }
    return listed("What the Hadamard transform costs inside the 4-bit quantizer", pairs, columns)


def host_table(buckets: Sequence[HostRow]) -> Table:
    """The host's work for one bucket."""
    columns: dict[str, Callable[[HostRow], str]] = {
        "codec": lambda row: row.codec,
        "workers": lambda row: str(row.workers),
        "coordinates": lambda row: f"{row.coordinates:,}",
        "kernels": lambda row: row.implementation,
        "PyTorch operations": lambda row: str(row.operations),
        "kernel calls": lambda row: str(row.calls),
        "host CPU ms": lambda row: number(1e3 * row.host_s, DIGITS),
        "kernels' CPU ms": lambda row: number(1e3 * row.kernels_s, DIGITS),
    }
    return listed("One rank's work for a bucket on a butterfly, without its messages", buckets, columns)


def bus_table(buses: Sequence[BusRow]) -> Table:
    """All-reduces between real workers."""
    columns: dict[str, Callable[[BusRow], str]] = {
        "codec": lambda row: row.codec,
        "bucket": lambda row: row.dtype,
        "workers": lambda row: str(row.workers),
        "coordinates": lambda row: f"{row.coordinates:,}",
        "kernels": lambda row: row.implementation,
        "ms": lambda row: number(1e3 * row.seconds, DIGITS),
        "all ranks' CPU ms": lambda row: number(1e3 * row.cpu_s, DIGITS),
        "bus GB/s": lambda row: number(quotient(row.bus_bandwidth, 1e9), DIGITS),
        "× the backend's time": lambda row: number(quotient(row.seconds, row.backend_seconds), DIGITS),
        "× its CPU time": lambda row: number(quotient(row.cpu_s, row.backend_cpu_s), DIGITS),
    }
    return listed(f"An all-reduce between real workers, medians; {AS_IT_IS}", buses, columns)


LINE, MARGIN = 0.16, 0.55
"""The height of an operation's line, and of the axis below, in inches."""

MARKS: dict[str, tuple[Hue, str, float]] = {
    "float32": ("blue", "o", 0.16),
    "bfloat16": ("vermilion", "s", -0.16),
}
"""Hue, marker and offset from the operation's line, so that equal figures of both dtypes remain visible."""


def plots(rows: Sequence[BenchRow], heading: str) -> list[Plot]:
    """Draws one plot for each family and size, from the rows on one thread."""
    kinds: dict[tuple[str, int], list[BenchRow]] = {}
    for row in rows:
        if row.threads == 1:
            kinds.setdefault((row.operation.partition(".")[0], row.numel), []).append(row)
    return [_plot(own, family, numel, heading) for (family, numel), own in kinds.items()]


def _plot(rows: Sequence[BenchRow], family: str, numel: int, heading: str) -> Plot:
    names = list(dict.fromkeys(row.operation for row in rows))
    place = {name: len(names) - 1 - index for index, name in enumerate(names)}

    series = list[Series]()
    for dtype in dict.fromkeys(row.dtype for row in rows):
        own = [row for row in rows if row.dtype == dtype]
        for names_of in ((DEFAULT,), ("cpu", "cuda")):
            shown = [row for row in own if row.implementation in names_of]
            series += [_points(dtype, shown, place)] if shown else []
    series.append(_copies(rows, place))
    views = [plain_log_x, row_ticks(list(place.values()), list(place)), y_from(-0.7, len(names) - 0.3)]
    panel = Panel(series, x_label=METRICS["ns_per_coordinate"].heading, views=views)
    height = MARGIN + LINE * max(len(names), 4)
    return series_plot(f"{family}-{numel}", f"{heading} · {numel:,} coordinates", [panel], (height,))


def _points(dtype: str, rows: Sequence[BenchRow], place: dict[str, int]) -> Series:
    hue, marker, shift = MARKS[dtype]
    name = rows[0].implementation
    known = [(row.ns_per_coordinate, place[row.operation] + shift) for row in rows]
    points = [(x, y) for x, y in known if x is not None]
    return Series.through(points, LineStyle(hue, "none", marker, name == DEFAULT), f"{name}, {dtype}")


def _copies(rows: Sequence[BenchRow], place: dict[str, int]) -> Series:
    """Marks where each operation would be if it moved its bytes at the speed of a copy."""
    bound: dict[str, float] = {}
    for row in rows:
        if row.dtype == rows[0].dtype and row.copy_bytes_per_s is not None:
            bound[row.operation] = 1e9 * row.bytes_per_coordinate / row.copy_bytes_per_s
    points = [(ns, place[name]) for name, ns in bound.items()]
    label = f"at a copy's bandwidth, {rows[0].dtype}"
    return Series.through(points, LineStyle("ink", "none", "|"), label, size=7)
