"""A sweep of predicted steps: where the time of each goes, beside what the papers print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import Settings, flatten, strategy
from gradwire.harness.report.tables import Column, Page, figures_table, finished
from gradwire.harness.studies.predict.record import PredictSummary

FILE = PredictSummary.file

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
    *("compute_s", "gradients_s", "weights_s", "stages_s", "codec_s", "gradient_comm_s"),
    *("training_days", "tflops", "over_uncompressed", "printed_tflops", "error"),
)


def compare(folders: Sequence[Path], output: Path, axes: Sequence[str] = ()) -> Page:
    """Writes table.md, table.csv and table.json to `output`; ValueError when nothing is done."""
    done, missing = finished(folders)
    found = [PredictSummary.read(folder / FILE) for folder in done]
    settings = [flatten(read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)) for folder in done]
    names, titles = [_name(each) for each in settings], [_title(one) for one in found]
    tables = [
        figures_table(
            title,
            ["sends"],
            [
                ([name], one.content())
                for one, name, own in zip(found, names, titles, strict=True)
                if own == title
            ],
            COLUMNS,
        )
        for title in dict.fromkeys(titles)
    ]
    rows = [
        {"sends": name} | one.scalars() | {"network": one.network_text}
        for one, name in zip(found, names, strict=True)
    ]
    page = Page(tables, [*NOTES, *_left_out(found), *missing])
    page.write(output, rows, {"rows": rows, "left_out": missing})
    return page


def _title(one: PredictSummary) -> str:
    """`gpt_13b, 64 workers (tensors over 4, 2 stages); modelled, 16 nodes of 4 …`"""
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
    return f"{one.model}, {one.workers} workers{among}; {one.network_text}; {told}, {overlap}"


def _name(settings: Settings) -> str:
    """What a step sends: the strategy by the name that SDP4Bit gives it, else codec and weights."""
    named = strategy(settings)
    if named is not None:
        return f"{named}, transform apart" if settings.get("codec.hadamard") == "apart" else named
    weights, rank = settings.get("parallel.weights"), settings.get("codec.rank")
    ranked = f", rank {rank}" if rank is not None else ""
    return str(settings["codec.name"]) + ranked + (f", weights {weights}" if weights else "")


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
