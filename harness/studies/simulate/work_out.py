"""A simulated training from its settings to its summary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict

from gradwire.harness.network.configured import make_links, network_text
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.simulate.figures import (
    Floats,
    Ratios,
    RoundFigures,
    phases,
    ratios,
    round_figures,
    row,
    sent_rows,
    utilization,
)
from gradwire.harness.studies.simulate.model import blocks_of
from gradwire.harness.studies.simulate.settings import SimulateTask
from gradwire.harness.studies.simulate.summary import SimulateSummary
from gradwire.harness.timing.simulate.rounds import Rows


def summarize(config: SimulateTask, rows: Rows) -> SimulateSummary:
    """The figures of a resolved configuration's rows."""
    given, network, size = config.simulate, config.network, config.cluster.size
    assert isinstance(network, SimulatedConfig)
    blocks, links = blocks_of(config), make_links(network, size)
    found = round_figures(rows, given.seconds, size)
    rounds, coordinates = len(found.end_s), sum(block.parameters for block in blocks)
    silent = given.scheme == "ideal"
    copies = 0 if silent else 1 if network.multicast else size - 1
    ratio = ratios(rows, coordinates, size, rounds)
    compute_s = _mean(found.compute_s)
    wait_s = _mean(found.mean_wait_s[1:])
    return SimulateSummary(
        scheme=given.scheme,
        bits=given.bits,
        floor=given.floor,
        workers=size,
        blocks=[list(block) for block in blocks],
        split=given.split,
        seconds=given.seconds,
        network=network_text(network, "modelled"),
        network_settings=asdict(network),
        rate_mbit=network.rate_mbit,
        rounds=rounds,
        utilization=utilization(rows, links, size, copies, given.seconds),
        t_wait=None if wait_s is None or not compute_s else wait_s / compute_s,
        wait_s=_mean(found.wait_s[1:]),
        overlap_s=_mean(found.overlap_s[1:]),
        row=row(found),
        osf=_mean(found.osf[1:]),
        compute_s=compute_s,
        round_s=float(found.end_s[-1] - found.end_s[0]) / (rounds - 1) if rounds > 1 else None,
        q_ratio_first=None if silent else _mean(ratio.first),
        q_ratio=None if silent else _mean(ratio.final),
        least_bits=ratio.least_bits,
        bytes_sent=float(rows.bytes[sent_rows(rows)].sum()),
        phases=[] if silent else [asdict(one) for one in phases(links.changes, found, ratio, given.seconds)],
        series=_series(found, None if silent else ratio),
        seed=config.seed,
        provenance=provenance(config.mapping()),
    )


def _series(found: RoundFigures, ratio: Ratios | None) -> dict[str, list[float | None]]:
    """By round; the last has no ratio, because its gradients are still under way."""
    series = {"end_s": found.end_s, "wait_s": found.wait_s, "overlap_s": found.overlap_s}
    if ratio is not None:
        series |= {
            "q_ratio_first": ratio.first,
            "q_ratio": ratio.final,
            "rate_mbit": ratio.rate_mbit,
        }
    return {name: list(_written(values)) for name, values in series.items()}


def _written(values: Floats) -> Iterable[float | None]:
    return (None if math.isnan(value) else round(float(value), 9) for value in values)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
