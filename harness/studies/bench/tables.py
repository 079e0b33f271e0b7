"""Tables of the benchmark, as text."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.harness.network.configured import AS_IT_IS
from gradwire.harness.report.tables import Table, figures_table, number, render_text
from gradwire.harness.studies.bench.bus import BusRow
from gradwire.harness.studies.bench.host import HostRow
from gradwire.harness.studies.bench.papers import RingCost, Smoothing, ring_costs, smoothing
from gradwire.harness.studies.bench.rows import Row
from gradwire.harness.timing.measure.metric import quotient
from gradwire.harness.timing.measure.metrics import OPERATION

DIGITS = 3

WIDTH = 170


def text(
    rows: Sequence[Row], workers: int, buckets: Sequence[HostRow] = (), buses: Sequence[BusRow] = ()
) -> str:
    """Returns all tables; those of a whole ring are for `workers`."""
    tables = [
        speed_table(rows),
        ring_table(ring_costs(rows), workers),
        smoothing_table(smoothing(rows)),
        host_table(buckets),
        bus_table(buses),
    ]
    return "\n\n".join(render_text(table, WIDTH) for table in tables if table.rows)


def speed_table(rows: Sequence[Row]) -> Table:
    """A table with a line for each row."""
    names = ("operation", "dtype", "coordinates", "kernels", "threads")
    lines = [([*row.names, str(row.threads)], row.figures) for row in rows]
    table = figures_table("Operations: shortest time of each", names, lines, OPERATION)
    peers = [" ".join(number(ratio, DIGITS) for ratio in row.speedup_to_peers.values()) for row in rows]
    cells = [[*line, others or "–"] for line, others in zip(table.rows, peers, strict=True)]
    return Table(table.title, [*table.header, "× peer"], cells)


def ring_table(costs: Sequence[RingCost], workers: int) -> Table:
    """Memory traffic beside the paper's formula, with the time it takes."""
    header = [
        "codec", "dtype", "coordinates", "kernels", "bytes/coordinate", f"at {workers} workers",
        "DynamiQ Table 2", f"at {workers} workers ", f"ns/coordinate at {workers} workers",
    ]  # fmt: skip
    rows = []
    for cost in costs:
        at = cost.at(workers)
        printed = _formula(cost.paper_const, cost.paper_slope)
        rows.append(
            [
                cost.codec,
                cost.dtype,
                f"{cost.numel:,}",
                cost.implementation,
                _formula(cost.bytes_const, cost.bytes_slope),
                number(at["bytes"], DIGITS),
                printed,
                number(at["paper_bytes"], DIGITS),
                number(at["ns"], DIGITS),
            ]
        )
    return Table("A ring all-reduce: memory traffic, AR = (n − 1)/n, and time of the codec", header, rows)


def _formula(const: float | None, slope: float | None) -> str:
    return (
        "–"
        if const is None or slope is None
        else f"{const:.2f} {'−' if slope < 0 else '+'} {abs(slope):.2f} AR"
    )


def smoothing_table(pairs: Sequence[Smoothing]) -> Table:
    """Throughput with the Hadamard transform beside throughput without."""
    header = [
        "operation", "dtype", "coordinates", "kernels", "GB/s without", "GB/s with", "ratio",
        "SDP4Bit Table 5, A100: ratio",
    ]  # fmt: skip
    rows = []
    for pair in pairs:
        rows.append(
            [
                pair.operation,
                pair.dtype,
                f"{pair.numel:,}",
                pair.implementation,
                number(pair.without_gb_per_s, DIGITS),
                number(pair.with_gb_per_s, DIGITS),
                number(pair.share, DIGITS),
                number(pair.paper_share, DIGITS),
            ]
        )
    return Table("What the Hadamard transform costs inside the 4-bit quantizer", header, rows)


def host_table(buckets: Sequence[HostRow]) -> Table:
    """What the host does for one bucket."""
    header = [
        "codec", "workers", "coordinates", "kernels", "PyTorch operations", "kernel calls", "host CPU ms",
        "kernels' CPU ms",
    ]  # fmt: skip
    rows = [
        [
            row.codec,
            str(row.workers),
            f"{row.coordinates:,}",
            row.implementation,
            str(row.operations),
            str(row.calls),
            number(1e3 * row.host_s, DIGITS),
            number(1e3 * row.kernels_s, DIGITS),
        ]
        for row in buckets
    ]
    return Table("One rank's work for a bucket on a butterfly, without its messages", header, rows)


def bus_table(buses: Sequence[BusRow]) -> Table:
    """All-reduces between real workers."""
    header = [
        "codec", "bucket", "workers", "coordinates", "kernels", "ms", "all ranks' CPU ms", "bus GB/s",
        "× the backend's time", "× its CPU time",
    ]  # fmt: skip
    rows = [
        [
            row.codec,
            row.dtype,
            str(row.workers),
            f"{row.coordinates:,}",
            row.implementation,
            number(1e3 * row.seconds, DIGITS),
            number(1e3 * row.cpu_s, DIGITS),
            number(None if row.bus_bandwidth is None else 1e-9 * row.bus_bandwidth, DIGITS),
            number(quotient(row.seconds, row.backend_seconds), DIGITS),
            number(quotient(row.cpu_s, row.backend_cpu_s), DIGITS),
        ]
        for row in buses
    ]
    return Table(f"An all-reduce between real workers, medians; {AS_IT_IS}", header, rows)
