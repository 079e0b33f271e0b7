"""Puts the faults of mutant_list.py into the CUDA sources one by one, runs the kernel's own tests in every
emulated way, and names the faults that no test notices.

`make mutants`; arguments choose faults by a part of their name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from mutant_list import MUTANTS, ROOT, Mutant

from gradwire.codecs.native.loading import library

BUILD = ROOT / "build" / "mutants"
LIBRARIES, COPY = BUILD / "lib", BUILD / "source"
LIMIT_S = 600


def prepare() -> None:
    """A copy of the sources with a build folder, and the other libraries next to the one to be broken."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "csrc", COPY / "csrc")
    shutil.copy(ROOT / "CMakeLists.txt", COPY)
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    installed = library("cpu")
    assert installed is not None, "the kernels for CPUs are not built: make install"
    for path in installed.path.parent.glob("*.so"):
        shutil.copy(path, LIBRARIES)
    options = ("-G", "Ninja", "-DGRADWIRE_EMULATION=ON", "-DGRADWIRE_CUDA=OFF")
    run("cmake", "-S", str(COPY), "-B", str(BUILD / "cmake"), *options)
    build()


def run(*command: str, limit_s: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MAKEFLAGS": "", **environment}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=limit_s, check=False
    )


def build() -> None:
    """Raises RuntimeError for sources that do not compile."""
    done = run("cmake", "--build", str(BUILD / "cmake"), "--target", "gradwire_emulated")
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    shutil.copy(BUILD / "cmake/csrc/emulation/libgradwire_emulated.so", LIBRARIES)


def tested(tests: str) -> int:
    """The code that pytest returns for these tests: 1 if some fail. A time limit is a failure."""
    files = (f"tests/kernels/test_{tests}_kernels.py", "tests/kernels/test_operations.py")
    options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "")
    words = ("-k", "emulated or reversed or small or grid")
    try:
        command = (sys.executable, "-m", "pytest", *options, *words, *files)
        return run(*command, limit_s=LIMIT_S, GRADWIRE_LIBRARIES=str(LIBRARIES)).returncode
    except subprocess.TimeoutExpired:
        return 1


def survives(mutant: Mutant) -> bool:
    """True if no test notices the mutant. Raises RuntimeError if it does not compile, or if tests do not
    run."""
    path = COPY / "csrc" / mutant.source
    whole = path.read_text()
    path.write_text(mutant.put_into(whole))
    try:
        build()
    finally:
        path.write_text(whole)
    code = tested(mutant.tests)
    if code not in (0, 1) and code >= 0:
        raise RuntimeError(f"{mutant.name}: pytest returned {code}")
    return code == 0


def main(parts: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not parts or any(part in mutant.name for part in parts)]
    prepare()
    for tests in sorted({mutant.tests for mutant in chosen}):
        if tested(tests):
            print(f"tests of {tests} fail without a fault")
            return 2
    found = []
    for mutant in chosen:
        alive = survives(mutant)
        found += [mutant] * alive
        print("SURVIVES" if alive else "noticed ", mutant.name, flush=True)
    print(f"{len(chosen) - len(found)} of {len(chosen)} faults noticed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
