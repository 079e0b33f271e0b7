"""Records what items of test functions cost: what `make costs` writes to `costs.txt` and tiers.py reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest


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

    def __init__(self, path: Path, least_s: float) -> None:
        self._path, self._least_s = path, least_s
        self._before_s = 0.0
        self._seconds: Counter[str] = Counter()
        self._items: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        """Collecting is nobody's cost."""
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
            function = report.nodeid.split("[")[0]
            self._seconds[function] += report.cpu_s  # type: ignore[attr-defined]
            self._items[function] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the functions whose items are worth sampling, one a line."""
        if hasattr(session.config, "workerinput"):
            return
        lines = [
            f"{self._seconds[function] / number:.2g} {function}\n"
            for function, number in sorted(self._items.items())
            if number > 1 and self._seconds[function] >= self._least_s
        ]
        self._path.write_text("".join(lines))
