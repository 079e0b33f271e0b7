"""Costs of items of test functions: `make costs` writes them to `costs.txt`, and `tiers.py` reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from tiers import USUAL_COST_S, function_of, is_sampled

LEAST_S = 0.001
"""The approximate cost of pytest itself for an item; the system's clocks may show less."""


def cpu_s() -> float:
    """CPU seconds of this process, of those it started that have ended, and of those that still run."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


class CostRecorder:
    """Each process measures its items; reports carry the figures to the one that writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before_s = 0.0
        self._seconds: Counter[str] = Counter()
        self._items: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        """Leave out what collecting took."""
        self._before_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the CPU time of all three phases to the last one's report."""
        report = yield
        if call.when == "teardown":
            now_s = cpu_s()
            report.cpu_s = now_s - self._before_s
            self._before_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            function = function_of(report.nodeid)
            self._seconds[function] += report.cpu_s  # type: ignore[attr-defined]
            self._items[function] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write one line for each function that is sampled, or would be at the usual cost."""
        if hasattr(session.config, "workerinput"):
            return
        lines = []
        for function, number in sorted(self._items.items()):
            cost_s = max(self._seconds[function] / number, LEAST_S)
            if is_sampled(cost_s, number) or is_sampled(USUAL_COST_S, number):
                lines.append(f"{cost_s:.2g} {function}\n")
        self._path.write_text("".join(lines))
