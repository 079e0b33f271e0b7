"""`gradwire.attach` with captured rounds."""

from __future__ import annotations

from typing import Any

import attach_captured_jobs as jobs
import pytest
from pool import Workers

from gradwire.codecs.native.loading import library

pytestmark = pytest.mark.skipif(library("cpu") is None, reason="definitions take the key by value")


@pytest.mark.parametrize("given", [{"codec": "dynamiq"}, {"codec": "mxfp8", "ef": True}], ids=str)
def test_each_loaded_state_has_rounds_captured_anew(given: dict[str, Any], workers: Workers) -> None:
    """DDP's buckets are then others: captures of earlier ones neither keep memory nor count against them."""
    plain = workers(2)(jobs.loaded_again, given, False)
    for own, other in zip(workers(2)(jobs.loaded_again, given, True), plain, strict=True):
        assert own[0] == other[0] and other[1] is None
        assert own[2] == [0] * jobs.LOADS
        assert own[1].captured == own[1].buckets > 1 and own[1].refused == {}
