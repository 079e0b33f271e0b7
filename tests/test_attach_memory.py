"""Models whose parameters lie in memory in another order than that of their shapes."""

from __future__ import annotations

from typing import Any

import attach_memory_jobs as jobs
import pytest
from pool import Workers

CASES: list[dict[str, Any]] = [
    *({"codec": "powersgd", "rank": rank, "ef": False} for rank in (1, 4)),
    {"codec": "powersgd", "rank": 2, "exclude": ["*image"]},
    {"codec": "optimus_cc", "stages": 1},
    {"codec": "edgc", "max_rank": 2, "window": 1, "alpha": 1.0, "estimator": "gaussian"},
    {"codec": "topk", "fraction": 0.1, "ef": True},
    {"codec": "onebit", "ef": True},
    {"codec": "mxfp8", "ef": True},
    {"codec": "dynamiq"},
    {"codec": "omnireduce"},
    {"codec": "backend"},
]


@pytest.mark.parametrize(
    ("ddp", "cases"),
    [
        ({}, CASES),
        ({"gradient_as_bucket_view": True}, [{"codec": "powersgd"}, {"codec": "topk", "ef": True}]),
        ({"static_graph": True}, [{"codec": "powersgd"}, {"codec": "onebit", "ef": True}]),
    ],
)
def test_the_order_in_memory_changes_no_bit(
    ddp: dict[str, Any], cases: list[dict[str, Any]], workers: Workers
) -> None:
    """Means, errors and states are those of contiguous parameters, and either takes up the other's state."""
    for own in workers(2)(jobs.in_both_orders, cases, ddp):
        for case, (plain, permuted) in zip(cases, own, strict=True):
            assert plain == permuted, case


def test_ranks_may_differ_in_the_order_in_memory(workers: Workers) -> None:
    cases = [{"codec": "powersgd"}, {"codec": "topk", "ef": True}, {"codec": "dynamiq"}, {"codec": "fp32"}]
    for own in workers(2)(jobs.in_orders_of_their_own, cases):
        for case, (plain, permuted) in zip(cases, own, strict=True):
            assert plain == permuted, case


def test_the_gradient_of_a_transposed_weight_keeps_its_rank(workers: Workers) -> None:
    cases = [
        {"codec": "powersgd", "rank": 1, "feedback": False},
        {"codec": "optimus_cc", "rank": 1, "stages": 1},
    ]
    for found in workers(2)(jobs.rank_one, cases):
        assert all(error is not None and error < 1e-12 for error in found), found
