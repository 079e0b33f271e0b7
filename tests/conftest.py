"""Fixtures for all tests."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Hundreds of processes import our sources. Without bytecode each of them compiles these again, in 0.5 s, and
# pytest rewrites all assertions in every worker.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""

# The examples of plug-ins pass the tests of all codecs and topologies, and so do those that the user names.
sys.path.append(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "plugins")
)
os.environ["GRADWIRE_PLUGINS"] = (
    f"{os.environ.get('GRADWIRE_PLUGINS', '')} int8:Int8 signsgd:SignSGD backwards:backwards tree:tree"
).strip()

# A shell's background jobs ignore SIGINT, and so would all processes that tests start to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import tiers
import torch
from item_costs import CostRecorder
from pool import WorkerPool, Workers

torch.set_num_threads(1)

# Importing makes no garbage, but looking for it among a million objects takes seconds, again and again.
gc.disable()

# Prepared data: once for all tests and the processes they start, and nothing in the user's own cache. Workers
# of pytest-xdist have the cache of the process that started them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="gradwire-tests-cache-")
    os.environ["GRADWIRE_CACHE"] = _cache.name


# Workers draw the sample of the process that started them, whatever is committed meanwhile.
os.environ[tiers.VARIABLE] = tiers.sampling_seed(Path(__file__).parent)

# Each of these tests would be skipped, and there are hundreds.
collect_ignore = [] if torch.cuda.is_available() else ["gpu"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(tiers)
    if path := config.getoption("record_costs"):
        config.pluginmanager.register(CostRecorder(Path(path)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore:
        terminalreporter.write_line("tests/gpu is left out: no CUDA device")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", default="0/1", help="K/N: the K-th of N shares, each with tests of all packages"
    )
    parser.addoption("--record-costs", metavar="FILE", help="write what items of test functions cost")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of other shares. A test's name decides its share, so shares stay the same."""
    which, of = (int(number) for number in config.getoption("share").split("/"))
    chosen = [item for item in items if zlib.crc32(item.nodeid.encode()) % of == which]
    left_out = set(items) - set(chosen)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = chosen


def pytest_collection_finish() -> None:
    """Let the collector look only at objects made from now on, and less often than every 700 objects."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_lines_of_progress() -> Iterator[None]:
    """Prevents lines of progress, which a busy machine would print; tests of progress undo this."""
    from gradwire.harness.runtime import progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "FIRST_S", math.inf)
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Plots end as empty files, which takes no time: for commands that draw them in addition to what a test
    reads."""
    from golden.commanded import undrawn as block

    with block():
        yield


@pytest.fixture(scope="session")
def _pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


@pytest.fixture
def workers(_pool: WorkerPool) -> Workers:
    """`workers(n)(function, *arguments)`: run a module-level function on n gloo ranks, results by rank."""
    return Workers(_pool)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real samples; tests that need it are skipped where it is absent."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("GRADWIRE_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set GRADWIRE_DATA=<folder>")
    return folder
