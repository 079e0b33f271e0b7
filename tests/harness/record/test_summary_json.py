"""Summaries as JSON, numbers that are not finite among them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from recorded import loads

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.summary import Summary

SUMMARY = Summary(
    metric="perplexity",
    final_metric=math.inf,
    tta={"20.0": {"train_time_s": math.inf, "step": None, "stays": None}},
    vnmse_mean=None,
    clock="simulated",
    train_time_s=10.0,
    wall_time_s=12.0,
    rounds_per_second=2.0,
    figures={"compute_s": 0.3, "compression_s": 0.1, "exposed_comm_s": 0.06, "other_s": 0.04},
    bytes_sent_per_rank=[100, 100],
    bytes_by_phase={"reduce_scatter": 200},
    wire_bits_per_coordinate=None,
    seed=0,
    steps=20,
    workers=2,
    kernel_backend="default",
    config_hash="a",
    code_hash="b",
    commit=None,
    dirty=None,
)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_a_summary_survives_and_is_valid_json() -> None:
    text = SUMMARY.to_json()
    json.loads(text, parse_constant=refuse_constant)
    assert Summary.from_json(text) == SUMMARY


def test_a_record_from_before_overlap_was_measured_can_be_read() -> None:
    new = ("overlap_s", "wait_s", "row", "osf", "utilization")
    overlap = {"row": math.inf, "overlap_s": 0.1, "wait_s": 0.0}
    values = json.loads(replace(SUMMARY, figures=SUMMARY.figures | overlap).to_json())
    assert values["row"] == "inf", "nobody waits"
    old = Summary.from_json(json.dumps({key: value for key, value in values.items() if key not in new}))
    assert old == SUMMARY
    assert old.values().keys().isdisjoint(new)


def test_nan_survives() -> None:
    read = Summary.from_json(replace(SUMMARY, final_metric=math.nan).to_json())
    assert math.isnan(read.final_metric)


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, 1.5, "text", None, [1, {"a": math.inf}], {"b": [True]}]
)
def test_finite_json_gives_back_what_it_got(value: Any) -> None:
    text = dumps(value)
    json.loads(text, parse_constant=refuse_constant)
    assert loads(text) == value


def test_missing_keys_are_named_and_unknown_ones_skipped() -> None:
    values = json.loads(SUMMARY.to_json())
    assert Summary.from_json(json.dumps(values | {"from_the_future": 1})) == SUMMARY
    del values["seed"], values["clock"]
    with pytest.raises(ValueError, match="lacks clock, seed"):
        Summary.from_json(json.dumps(values))
    with pytest.raises(ValueError, match="is a list, not an object"):
        Summary.from_json("[]")
