"""The state in flight on a simulated clock, as a tensor of a checkpoint: JSON with exact times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.files.structured import parse_json
from gradwire.harness.timing.simulate.plan import Before
from gradwire.harness.timing.simulate.window import StepsInFlight, StepWindow
from gradwire.harness.timing.trace import step

STATE = "in_flight"
WHERE, REMEDY = "a checkpoint's clock", "resume=never starts over"

_NAMED = {
    kind.__name__: kind
    for kind in (
        *(step.RankTrace, step.Compute, step.Start, step.Await, step.Barrier),
        *(step.TaskTrace, step.Work, step.Part, step.Post, step.Urgency, step.Wait),
        Before,
    )
}


def window_tensors(window: StepWindow) -> dict[str, Tensor]:
    """The state from which an interrupted run resumes; empty if nothing is in flight."""
    found = window.in_flight
    if found is None:
        return {}
    plain = [found.now_s, found.steps, found.before, found.begun, found.ended]
    return {STATE: torch.frombuffer(bytearray(json.dumps(_plain(plain)).encode()), dtype=torch.uint8)}


def load_window(window: StepWindow, saved: Mapping[str, Tensor]) -> None:
    """Restores `window` from a result of `window_tensors`."""
    window.in_flight = None
    if STATE in saved:
        now_s, steps, before, begun, ended = _made(
            parse_json(bytes(saved[STATE].cpu().numpy()), WHERE, remedy=REMEDY, expected=list)
        )
        window.in_flight = StepsInFlight(now_s, list(steps), before, begun, ended)


def _plain(value: Any) -> Any:
    """Converts to JSON lists that begin with the kind of their content: a named tuple, a mapping, or another
    sequence."""
    if type(value).__name__ in _NAMED:
        return [type(value).__name__, *map(_plain, value)]
    if isinstance(value, Mapping):
        return ["mapping", *([key, _plain(each)] for key, each in value.items())]
    return ["sequence", *map(_plain, value)] if isinstance(value, list | tuple) else value


def _made(value: Any) -> Any:
    """The inverse of `_plain`; every sequence becomes a tuple."""
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind == "mapping":
        return {key: _made(each) for key, each in parts}
    made = tuple(map(_made, parts))
    return made if kind == "sequence" else _NAMED[kind](*made)
