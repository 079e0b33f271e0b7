"""Axes and values that sweeps may have at any size are known from the sweeps' files."""

from __future__ import annotations

import pytest

from gradwire.harness.config.declared import Declared
from gradwire.harness.sweeps.known import known_sweep, known_sweeps


def test_sweeps_that_can_run_are_known_by_their_files() -> None:
    known = known_sweeps()
    budgets = known["dynamiq_table4"]
    assert {3, 4, 5, 6} <= set(budgets.axes["codec.bits"])
    assert {"gemma1b", "llama1b_mmlu"} <= set(budgets.axes["model"])
    assert budgets.key("rate_mbit") == "network.rate_mbit" and budgets.shared["topology"] == ["ring"]
    budgets.check_value("dynamiq_table4", "codec.bits", 5)
    with pytest.raises(ValueError, match="dynamiq_table4 has no codec=powersgd; it has bf16, mxfp8, dynamiq"):
        budgets.check_value("dynamiq_table4", "codec", "powersgd")


def test_a_case_that_sets_no_field_leaves_its_default() -> None:
    taken = {"from": "warm", "take": "gradients", "step": [2, 9]}
    cases = [{"codec": "dynamiq", "gradients": taken}, {"codec": "dynamiq", "codec.group": 32}]
    known = known_sweep(Declared({"any": cases}, needs={"warm": "demo"}), {"topology": "ring"})
    assert known.axes["codec.group"] == [32, 16]
    assert known.axes["gradients"] == ["warm:step2", "warm:step9"]
    assert known.shared == {"topology": ["ring"]}
