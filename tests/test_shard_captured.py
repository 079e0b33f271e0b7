"""`gradwire.shard_hooks` with captured rounds, and with ranks that share a device."""

from __future__ import annotations

from typing import Any

import pytest
import shard_captured_jobs as jobs
from pool import Workers

from gradwire.codecs.native.loading import library
from gradwire.harness.comm.transport.captured_rounds import SETTLING
from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE

pytestmark = pytest.mark.skipif(library("cpu") is None, reason="definitions take the key by value")

MODULES = 2
LAUNCHES = MODULES * (jobs.STEPS - SETTLING)
"""Those of a collective that every step runs for each module."""

AFTER = MODULES
"""Weights are gathered once more after the last step."""


@pytest.mark.parametrize(
    ("given", "model", "size", "launches"),
    [
        ({"codec": "fp32"}, {}, 2, 2 * LAUNCHES + AFTER),
        ({"codec": "dynamiq", "weights": "qw"}, {}, 3, 2 * LAUNCHES + AFTER),
        ({"codec": "mxfp8", "ef": True, "weights": "qwd", "weight_group": 32}, {}, 2, 2 * LAUNCHES),
        ({"codec": "qsgd", "bits": 8, "weights": "qwd"}, {"bf16": True}, 2, 2 * LAUNCHES),
        ({"codec": "thc"}, {"bf16": True, "reshard_after_forward": True}, 2, None),
        ({"codec": "tfp", "weights": "qw"}, {"replicas": True}, 4, 3 * LAUNCHES + AFTER),
    ],
    ids=["exact", "qw", "qwd", "qwd-bf16", "reshard", "replicas"],
)
def test_captured_training_is_that_step_by_step(
    given: dict[str, Any], model: dict[str, Any], size: int, launches: int | None, workers: Workers
) -> None:
    """Losses, weights and bytes, although FSDP2 hands over other memory in each pass."""
    plain = workers(size)(jobs.train, given, False, model)
    captured = workers(size)(jobs.train, given, True, model)
    for own, other in zip(captured, plain, strict=True):
        assert own[:3] == other[:3]
        assert other[3:] == (None, 0)
        assert own[4] == launches or launches is None and own[4] > 2 * LAUNCHES
        assert own[3] is not None and own[3]["captured"] >= 2 * MODULES


def test_a_resumed_run_launches_on(workers: Workers) -> None:
    """The weights that a rank remembers stay where graphs read them."""
    given = {"codec": "mxfp8", "ef": True, "weights": "qwd", "weight_group": 32}
    plain = workers(2)(jobs.train, given, False, {}, True)
    for own, other in zip(workers(2)(jobs.train, given, True, {}, True), plain, strict=True):
        assert own[:3] == other[:3] and own[4] == 2 * LAUNCHES


def test_the_record_says_what_is_not_captured(workers: Workers) -> None:
    """A codec that allows none: its weights are captured all the same."""
    for *_, report, launches in workers(2)(jobs.train, {"codec": "all_to_all", "weights": "qw"}, True, {}):
        assert report is not None and report["captured"] == MODULES and launches == LAUNCHES + AFTER
        (reason,) = report["refused"]
        assert reason == "codec=all_to_all does not do the same in every step on the host"
        assert report["refused"][reason] == MODULES
    for *_, report, launches in workers(2)(jobs.train, {"codec": "fp32", "graphs": "never"}, True, {}):
        assert (report, launches) == (None, 0)


def test_ranks_that_share_a_device_train_as_others_do(workers: Workers) -> None:
    given = {"codec": "dynamiq", "weights": "qwd"}
    plain = workers(2)(jobs.train, given, False, {})
    for own, other in zip(workers(2)(jobs.shared, given), plain, strict=True):
        assert own[:3] == other[:3]
        assert own[3] is not None and own[4] == 0
        assert own[3]["captured"] == 0 and own[3]["refused"][REFUSES_CAPTURE] == 2 * MODULES
