"""Sizes of sweeps that no record has are found from the sweeps' files and the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep_records import record

from gradwire.harness.config.declared import Declared
from gradwire.harness.report.claims.known_sweeps import KnownSweep
from gradwire.harness.report.not_run import not_run
from gradwire.harness.report.sweep_record import SweepRecord
from gradwire.harness.sweeps.known import known_sweep, known_sweeps


def sweep(
    cases: Mapping[str, Any], common: Mapping[str, Any] | None = None, task: str = "train"
) -> KnownSweep:
    declared = Declared(cases, common or {}, needs={"warm": "dynamiq_gradients"})
    return known_sweep(declared, {"task": task, "model": "gpt2"})


def recorded(*sizes: str) -> list[SweepRecord]:
    return [record(("codec",), [({"codec": "aqgb"}, 0, {})], name="some", size=size) for size in sizes]


CASES = {size: [{"codec": ["aqgb", "fp32"], "seed": [0, 1]}] for size in ("tiny", "small", "gpu", "paper")}


def test_sizes_above_the_largest_record_have_not_run() -> None:
    known = {"some": sweep(CASES, {"gpu": {"model": "resnet50"}, "paper": {"model": "resnext101"}})}
    both = ("some at size=gpu and size=paper", "not run: no record of resnet50, resnext101")
    assert not_run(["some", "some"], known, {"some": recorded("small", "tiny")}) == [both]
    assert not_run(["some"], known, {"some": recorded("small", "gpu")}) == [
        ("some at size=paper", "not run: no record of resnext101")
    ]
    assert not_run(["some"], known, {"some": recorded("paper")}) == []


def test_a_sweep_without_a_record_is_its_items_matter() -> None:
    assert not_run(["some", "other"], {"some": sweep(CASES)}, {}) == []


def test_a_study_that_is_the_same_at_every_size_has_run() -> None:
    """Unless a larger size has other cells."""
    known = {"some": sweep(CASES, task="simulate")}
    assert not_run(["some"], known, {"some": recorded("small")}) == []
    other = {"some": sweep({**CASES, "paper": [{"codec": "aqgb", "seed": 0}]}, task="simulate")}
    assert not_run(["some"], other, {"some": recorded("small")}) == [
        ("some at size=paper", "not run: no record")
    ]


def test_sweeps_that_lack_the_same_share_a_line() -> None:
    known = {name: sweep(CASES) for name in ("some", "other")}
    (line,) = not_run(["some", "other"], known, {"some": recorded("small"), "other": recorded("small")})
    assert line == ("some, other at size=gpu and size=paper", "not run: no record of gpt2")


TAKEN = {"from": "warm", "take": "run"}


def test_models_of_cells_count_and_what_is_taken_from_other_sweeps_does_not() -> None:
    cases = {"paper": [{"model": ["bert", "gpt2"], "codec": "fp32"}, {"run": TAKEN}]}
    planned = sweep(cases).sizes["paper"]
    assert planned.models == ("bert", "gpt2")
    assert planned.cells == ({"model": "bert", "codec": "fp32"}, {"model": "gpt2", "codec": "fp32"}, {})


def test_the_models_of_aqgb_that_no_record_has_are_found() -> None:
    known = known_sweeps()
    names = ("aqgb_fig2_table2", "aqgb_fig2b", "aqgb_fig12")
    records = {name: [record(("codec",), [({"codec": "x"}, 0, {})], name=name)] for name in names}
    assert not_run(names, known, records) == [
        ("aqgb_fig2_table2 at size=gpu and size=paper", "not run: no record of resnet50"),
        ("aqgb_fig2b at size=gpu and size=paper", "not run: no record of resnext101"),
    ]
