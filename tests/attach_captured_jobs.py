"""`attach` with captured rounds, on pool workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attach_jobs import run_steps, weights, wrapped
from emulated_graph import RerunGraph, post_unless_capturing, run_unless_capturing

import gradwire
from gradwire.codecs.native.call import Call
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.process import ProcessChannel
from gradwire.harness.library import calls

LOADS, STEPS = 3, 6
"""The number of times that a state is loaded, and of steps after each."""


def loaded_again(rank: int, size: int, given: dict[str, Any], captured: bool) -> tuple[bytes, Any, list[int]]:
    """Weights, what is said of captured rounds at the end, and after each loading of a state the number of
    captures that it has left."""
    rounds, left = CapturedRounds(RerunGraph, torch.device("cpu"), required=False), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessChannel, "_post", post_unless_capturing)
        patch.setattr(Call, "run", run_unless_capturing)
        patch.setattr(calls, "make_captured_rounds", lambda graphs, device: rounds if captured else None)
        model = wrapped()
        with gradwire.attach(model, **given) as synchronizer:
            for begin in range(0, (LOADS + 1) * STEPS, STEPS):
                run_steps(model, range(begin, begin + STEPS), rank)
                if begin < LOADS * STEPS:
                    assert not captured or list(rounds)
                    synchronizer.load_state_dict(synchronizer.state_dict())
                    left.append(len(list(rounds)))
            found = weights(model), synchronizer.captured, left
        assert not list(rounds), "detach() discards captures"
        return found
