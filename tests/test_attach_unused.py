"""Parameters that no rank uses in a pass, and ranks that run out of data: what DDP does with means."""

from __future__ import annotations

from typing import Any

import pytest
from attach_unused_jobs import error_in_join, gradients_in_join, what_is_lost
from pool import Workers

REMEMBERING: dict[str, dict[str, Any]] = {
    "topk": {"codec": "topk", "fraction": 0.2, "ef": True},
    "onebit": {"codec": "onebit", "ef": True},
    "excluding": {"codec": "topk", "fraction": 0.2, "ef": True, "exclude": ["always.*"]},
    "powersgd": {"codec": "powersgd", "rank": 1, "min_compression_rate": 1.0},
}

PATTERNS = [
    ["uu----", "uu----"],  # a layer that is dropped for good
    ["u--u", "u--u"],  # one that comes back
    ["uuuu", "uuuu"],
    ["u-u-u-", "uu----"],  # one that a single rank uses
    ["ufuf", "ufuf"],
    ["ua-a", "ua--"],
    ["us-u", "us-u"],
]


@pytest.mark.parametrize("codec", REMEMBERING)
@pytest.mark.parametrize("ddp", [{}, {"gradient_as_bucket_view": True}], ids=["", "views"])
def test_what_did_not_arrive_is_kept(codec: str, ddp: dict[str, Any], workers: Workers) -> None:
    """DDP drops the mean of a parameter that no rank has used; what a codec has put into it is still owed."""
    for lost in workers(2)(what_is_lost, PATTERNS, REMEMBERING[codec], ddp):
        assert max(lost) < 1e-6, dict(zip(map(str, PATTERNS), lost, strict=True))


def test_join_divides_as_configured(workers: Workers) -> None:
    codecs = [None, "fp32", "backend", "dynamiq", "powersgd", "onebit"]
    first, second = workers(2)(gradients_in_join, codecs)
    assert first == {codec: [pytest.approx(1.5)] for codec in codecs}
    assert second == {codec: [pytest.approx(1.5), pytest.approx(2.0)] for codec in codecs}


def test_an_error_in_join_is_the_codecs(workers: Workers) -> None:
    assert workers(2)(error_in_join) == [0.0, 0.0]
