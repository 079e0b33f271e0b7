"""Measures the power of both tiers of tests by faults in the Python sources.

Each fault is tried against the tests that execute its statement, up to the first failure.

    python tests/power/measure.py [--faults 200] [--seed 0] [--seconds 60] [--processes 2]
                                  [--folder build/power] [tests ...]

First all tests run once in a copy of the checkout whose sources report which faults' statements they execute.
Then the fast tier's tests see each fault and, if they miss it, the full tier's: of each tier the nearest
ones, up to `--seconds` of CPU time by tests/costs.txt. A failure counts if the same test fails again. Results
are kept in the folder, and what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tiers import COSTS, USUAL_COST_S, VARIABLE, function_of, read_costs, sampling_seed

from power.hits import MARKER
from power.python_faults import Fault, candidates, draw, mark

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("codecs", "harness")
LIMIT_S = 1800
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Copy:
    """A copy of the checkout's last commit, and a Python whose `gradwire` it is."""

    checkout: Path
    python: Path

    @classmethod
    def make(cls, folder: Path) -> Copy:
        """Clone into the new `folder`, with the installed compiled kernels and packages."""
        shutil.rmtree(folder, ignore_errors=True)
        checkout = folder / "checkout"
        subprocess.run(
            ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--shared", ROOT, checkout],
            check=True,
        )
        installed = Path(sysconfig.get_path("purelib"))
        shutil.copytree(installed / "gradwire" / "lib", checkout / "gradwire" / "lib")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        code = 'import sysconfig; print(sysconfig.get_path("purelib"))'
        site = Path(subprocess.check_output([python, "-c", code], text=True).strip())
        package = folder / "package"
        package.mkdir()
        (package / "gradwire").symlink_to(checkout / "gradwire")
        (site / "own.pth").write_text(f"{package}\n")
        (site / "packages.pth").write_text(f"{installed}\n")
        shutil.copy(Path(__file__).with_name("hits.py"), site / "gradwire_hits.py")
        (site / "sitecustomize.py").write_text(MARKER)
        return cls(checkout, python)

    def pytest(self, *arguments: str, limit_s: int | None = None) -> subprocess.CompletedProcess[str]:
        data = os.environ.get("GRADWIRE_DATA", str(ROOT.parent / "shared" / "data"))
        return subprocess.run(
            [self.python, "-m", "pytest", "-p", "gradwire_hits", "-m", "", *arguments],
            cwd=self.checkout,
            env={**os.environ, "GRADWIRE_DATA": data, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def failure(self, tests: Sequence[str]) -> str | None:
        """The first of these tests that fails, "time" if they do not end, None if all pass."""
        if not tests:
            return None
        chosen = self.checkout.parent / "chosen.txt"
        chosen.write_text("\n".join(tests))
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        try:
            done = self.pytest("-n", "0", "-x", "--chosen", str(chosen), *files, limit_s=LIMIT_S)
        except subprocess.TimeoutExpired:
            return "time"
        if done.returncode in (0, 5):
            return None
        found = FAILED.search(done.stdout)
        return found[1] if found else "the process"


def run_marked(
    folder: Path, faults: Sequence[Fault], processes: int, tests: Sequence[str]
) -> dict[int, list[str]]:
    """The tests that execute each fault's statement, of those that pass."""
    copy = Copy.make(folder / "marked")
    by_path = defaultdict[str, list[tuple[int, Fault]]](list)
    for number, fault in enumerate(faults):
        by_path[fault.path].append((number, fault))
    for path, several in by_path.items():
        file = copy.checkout / path
        file.write_bytes(mark(file.read_bytes(), several))
    found = folder / "hits"
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir()
    done = copy.pytest("-n", str(processes), "--dist", "loadfile", "--hits", str(found), *tests)
    (folder / "marked.log").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest returned {done.returncode}: see {folder / 'marked.log'}")
    print(done.stdout.splitlines()[-1])
    executing = defaultdict[int, list[str]](list)
    for path in found.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            name, numbers = json.loads(line)
            for number in numbers:
                executing[number].append(name)
    return executing


def fast_tier(copy: Copy, tests: Sequence[str]) -> frozenset[str]:
    """The tests that `make test` draws at this commit."""
    done = copy.pytest("-m", "not full", "-n", "0", "--collect-only", *tests)
    return frozenset(line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line)


def nearest_first(tests: Iterable[str], fault: Fault, costs: Mapping[str, float]) -> list[str]:
    """The tests of the fault's own package first, then the cheap ones."""
    package = Path(fault.path).parts

    def distance(test: str) -> tuple[int, float]:
        mirrored = Path(test.split("::")[0]).parts[1:]
        alike = 0
        while alike < min(len(package), len(mirrored)) and package[alike] == mirrored[alike]:
            alike += 1
        return -alike, costs.get(function_of(test), USUAL_COST_S)

    return sorted(tests, key=distance)


def affordable(tests: Sequence[str], costs: Mapping[str, float], seconds: float) -> list[str]:
    """The first of these tests, which together take that much CPU time."""
    spent = accumulate(costs.get(function_of(test), USUAL_COST_S) for test in tests)
    return [test for test, so_far in zip(tests, spent, strict=True) if so_far <= seconds]


def try_fault(copy: Copy, fault: Fault, tiers: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """The tier that notices the fault ("fast", "full" or None), and the test that does."""
    path = copy.checkout / fault.path
    whole = path.read_bytes()
    path.write_bytes(fault.put_into(whole))
    try:
        for tier, several in tiers.items():
            by = copy.failure(several)
            if by is not None and (not by.startswith("tests/") or "::" not in by or copy.failure([by])):
                return {"noticed": tier, "by": by}
        return {"noticed": None, "by": None}
    finally:
        path.write_bytes(whole)


def main(arguments: Sequence[str]) -> None:
    """Draw faults, find their tests, try them, and print what each tier has noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "power")
    parser.add_argument("tests", nargs="*", default=["tests"])
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[VARIABLE] = sampling_seed(ROOT)
    faults = draw(candidates(ROOT, PACKAGES), given.faults, given.seed)
    kept = folder / "tests.json"
    if not kept.exists():
        executed = run_marked(folder, faults, given.processes, given.tests)
        kept.write_text(json.dumps([executed.get(number, []) for number in range(len(faults))]))
    tests: list[list[str]] = json.loads(kept.read_text())
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(given.processes):
        copies.put(Copy.make(folder / f"copy{number}"))
    first = copies.get()
    fast, costs = fast_tier(first, given.tests), read_costs(COSTS)
    copies.put(first)
    results = folder / "results.jsonl"
    known = (
        {line["number"]: line for line in map(json.loads, results.read_text().splitlines())}
        if results.exists()
        else {}
    )

    def measure(number: int) -> None:
        copy, begun, fault = copies.get(), time.monotonic(), faults[number]
        nearest = nearest_first(tests[number], fault, costs)
        tiers = {
            tier: affordable(
                [test for test in nearest if (test in fast) == (tier == "fast")], costs, given.seconds
            )
            for tier in ("fast", "full")
        }
        tried = sum(map(len, tiers.values()))
        try:
            found = try_fault(copy, fault, tiers)
        finally:
            copies.put(copy)
        said = fault.describe((ROOT / fault.path).read_bytes())
        known[number] = {
            "number": number,
            "fault": said,
            "tests": len(tests[number]),
            "tried": tried,
            **found,
        }
        with results.open("a") as file:
            print(json.dumps(known[number]), file=file)
        print(f"{found['noticed'] or 'NONE':5} {time.monotonic() - begun:6.0f} s  {said}", flush=True)

    with ThreadPoolExecutor(given.processes) as pool:
        for done in [pool.submit(measure, number) for number in range(len(faults)) if number not in known]:
            done.result()
    noticed = [line["noticed"] for line in known.values()]
    by_fast, by_all = noticed.count("fast"), len(noticed) - noticed.count(None)
    print(f"{len(noticed)} faults: {by_all} noticed by all tests, {by_fast} of these by the fast tier "
          f"({by_fast / max(by_all, 1):.0%}), {noticed.count(None)} by none")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
