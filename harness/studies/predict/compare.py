"""The table of predicted steps: the parts of each step's time, next to the papers' figures."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.harness.report.configs import Settings, strategy
from gradwire.harness.studies.comparison import Compared, Entry, figure_columns, titled_tables
from gradwire.harness.studies.predict.study import PredictSummary

NOTES = (
    "All figures are modelled: the parallelism's own messages on the simulated clock. Times are of the "
    "slowest worker; gradients and weights: how long it waits for them; gradients travel: how long they do, "
    "hidden or not.",
    "TFLOP/s: floating-point operations of one worker's part of the step, over the step. Speed-up: the step "
    "of the uncompressed system with the same computation, over this one. Error: of the TFLOP/s, to those "
    "printed.",
)


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A table for each model and network, with a line for each step."""
    found = [(entry.record, _name(entry.settings)) for entry in entries]
    lines = [(_title(one), ([name], one.content())) for one, name in found]
    rows = [{"sends": name} | one.scalars() | {"network": one.network_text} for one, name in found]
    notes = [*NOTES, *_left_out([one for one, _ in found])]
    return Compared(titled_tables(lines, ["sends"], figure_columns(entries)), rows, notes)


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
    computation = (
        "computation calibrated on the uncompressed system" if one.calibrated else "computation given"
    )
    overlap = "gradients sent during backward" if one.overlap else "gradients sent after backward"
    return f"{one.model}, {one.workers} workers{among}; {one.network_text}; {computation}, {overlap}"


def _name(settings: Settings) -> str:
    """The name of the messages of a step: SDP4Bit's name of the strategy, or else codec and weights."""
    named = strategy(settings)
    if named is not None:
        return f"{named}, transform apart" if settings.get("codec.hadamard") == "apart" else named
    weights, rank = settings.get("parallel.weights"), settings.get("codec.rank")
    ranked = f", rank {rank}" if rank is not None else ""
    return str(settings["codec.name"]) + ranked + (f", weights {weights}" if weights else "")


def _left_out(found: Sequence[PredictSummary]) -> list[str]:
    """Notes on omitted times: one remark for each kind, with the models it applies to."""
    things = list(dict.fromkeys(text for one in found for text in one.left_out))
    remarks = []
    for text in things:
        models = list(dict.fromkeys(one.model for one in found if text in one.left_out))
        everywhere = all(text in one.left_out for one in found)
        of = "" if everywhere else f" ({', '.join(models)})"
        remarks.append(f"Left out{of}: {text}.")
    return remarks
