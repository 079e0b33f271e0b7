"""One run of each kind for all tests of traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from pool import WorkerPool, Workers
from traced_runs import SIMULATED, real_run, virtual_run


@pytest.fixture(scope="session")
def paced(_pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes on paced links."""
    return real_run(tmp_path_factory.mktemp("runs") / "paced", 2, Workers(_pool), "network=paced")


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four virtual workers on a simulated network."""
    return virtual_run(tmp_path_factory.mktemp("runs") / "simulated", 4, *SIMULATED)
