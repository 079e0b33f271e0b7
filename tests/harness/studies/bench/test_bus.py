"""All-reduces by turns between real workers: what is measured, and the rows that follow from it."""

from __future__ import annotations

import pytest
from bus_jobs import rounds
from pool import Workers

from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.studies.bench.bus import BACKEND, BusSettings, Subject, bus_rows, subjects
from gradwire.harness.studies.bench.views import text

SUBJECTS = subjects(["bf16", "dynamiq"])


def settings(coordinates: int = 5000) -> BusSettings:
    return BusSettings(SUBJECTS, ClusterConfig(name="local", workers=2), coordinates, 3, "auto", "auto", 0)


def test_the_backend_is_measured_with_what_bf16_sends() -> None:
    assert (
        Subject(BACKEND, "float32"),
        Subject(BACKEND, "bfloat16"),
        Subject("bf16", "float32"),
        Subject("dynamiq", "float32"),
        Subject("bf16", "bfloat16"),
    ) == SUBJECTS


def test_rows_are_medians_of_the_slowest_rank() -> None:
    """Rank 1 takes twice as long. Each subject takes a second more, each round half a second more."""
    ranks = [
        [
            value
            for step in (2, 0, 1)
            for index in range(len(SUBJECTS))
            for value in ((1 + rank) * (1 + index + step / 2), 10.0)
        ]
        for rank in range(2)
    ]
    rows = {Subject(row.codec, row.dtype): row for row in bus_rows(settings(), ranks)}
    assert [row.seconds for row in rows.values()] == [3.0, 5.0, 7.0, 9.0, 11.0]
    assert all(row.cpu_s == 20 for row in rows.values())
    assert rows[Subject("bf16", "float32")].backend_seconds == 5, "the backend's bfloat16"
    assert rows[Subject("dynamiq", "float32")].backend_seconds == 3
    assert rows[Subject("bf16", "bfloat16")].bus_bandwidth == pytest.approx(2 * 5000 / 11)
    assert "11000" in text([], 8, (), list(rows.values()))


def test_real_workers(workers: Workers) -> None:
    asked = settings()
    gathered = workers(2)(rounds, asked)
    assert gathered[0] == gathered[1]
    rows = bus_rows(asked, gathered[0])
    assert len(rows) == len(SUBJECTS) and all(row.seconds > 0 < row.cpu_s for row in rows)
