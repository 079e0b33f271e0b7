"""A sweep of predicted steps: where the time of each goes, beside what the papers print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.harness.report.tables import Column, Line, Page, figures_table, finished
from gradwire.harness.studies.predict.summary import PredictSummary

FILE = "predict.json"

NOTES = (
    "All figures are modelled: the parallelism's own messages on the simulated clock. Times are of the "
    "slowest worker; gradients and weights: how long it waits for them; gradients travel: how long they do, "
    "hidden or not.",
    "TFLOP/s: floating-point operations of one worker's part of the step, over the step. Speed-up: the step "
    "of the uncompressed system with the same computation, over this one. Error: of the TFLOP/s, to those "
    "printed.",
)

COLUMNS = (
    Column("step_time_s", "step_s"),
    *("compute_s", "gradients_s", "weights_s", "codec_s", "gradient_comm_s"),
    *("tflops", "over_uncompressed", "printed_tflops", "error"),
)

KEPT = (
    *("model", "codec", "weights", "parallel", "topology", "workers", "tensor_parallel", "pipeline_parallel"),
    *("replicas", "parameters", "coordinates", "buckets", "overlap", "network", "calibrated"),
    *("step_s", "compute_s", "gradients_s", "weights_s", "other_s", "codec_s", "gradient_comm_s"),
    *("flops", "tflops", "baseline_step_s", "over_uncompressed", "printed_tflops"),
)
"""The columns of table.csv, before the error."""


def compare(folders: Sequence[Path], output: Path) -> Page:
    """Writes table.md, table.csv and table.json to `output`; ValueError when nothing is done."""
    done, missing = finished(folders)
    found = [PredictSummary.read(folder / FILE) for folder in done]
    titles = [_title(one) for one in found]
    tables = [
        figures_table(
            title,
            ["gradients", "weights"],
            [_line(one) for one, own in zip(found, titles, strict=True) if own == title],
            COLUMNS,
        )
        for title in dict.fromkeys(titles)
    ]
    rows = [_row(one) for one in found]
    page = Page(tables, [*NOTES, *_left_out(found), *missing])
    page.write(output, rows, {"rows": rows, "left_out": missing})
    return page


def _title(one: PredictSummary) -> str:
    """`gpt_13b, 64 workers (tensors over 4, stages 2), 16 nodes of 4 …`"""
    divided = [
        text
        for text, count in (
            (f"tensors over {one.tensor_parallel}", one.tensor_parallel),
            (f"{one.pipeline_parallel} stages", one.pipeline_parallel),
        )
        if count > 1
    ]
    among = f" ({', '.join(divided)})" if divided else ""
    told = "computation calibrated on the uncompressed system" if one.calibrated else "computation given"
    overlap = "gradients sent during backward" if one.overlap else "gradients sent after backward"
    return f"{one.model}, {one.workers} workers{among}, {one.network}; {told}, {overlap}"


def _line(one: PredictSummary) -> Line:
    codec = one.codec if one.topology == "ring" else f"{one.codec}, {one.topology}"
    return [codec, one.weights or "–"], asdict(one) | {"error": one.error}


def _row(one: PredictSummary) -> dict[str, Any]:
    return {key: getattr(one, key) for key in KEPT} | {"error": one.error}


def _left_out(found: Sequence[PredictSummary]) -> list[str]:
    """What is missing in the times, a remark for each thing and the models that lack it."""
    things = list(dict.fromkeys(text for one in found for text in one.left_out))
    remarks = []
    for text in things:
        models = list(dict.fromkeys(one.model for one in found if text in one.left_out))
        everywhere = all(text in one.left_out for one in found)
        of = "" if everywhere else f" ({', '.join(models)})"
        remarks.append(f"Left out{of}: {text}.")
    return remarks
