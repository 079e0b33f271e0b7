"""Runs golden cases with the sources of another commit, or of this working tree, as a user's commands."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from cases import RENAMED, SHORT, Case
from runs import Figures, figures

ROOT = Path(__file__).parents[2]
COMPILED = ("csrc", "CMakeLists.txt")
SIMULATOR = "csrc/simulator"
PRODUCT = ("codecs", "conf", "gradwire", "harness", *COMPILED)
"""The files that determine a run's results."""

REDIRECT = """
import os, sys
sys.meta_path[:] = [f for f in sys.meta_path if "scikit" not in type(f).__name__.lower()]
sys.path.insert(0, os.environ["GRADWIRE_SOURCES"])
"""
"""The first lines that every Python of a run executes: they drop an editable install, and import the sources
of one commit."""


class NoHistoryError(Exception):
    """The commit is not available here; the text says why."""


def git(*arguments: str) -> bytes:
    """The output of git for this working tree. Raises NoHistoryError with its last line where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise NoHistoryError("git is not installed") from None
    if done.returncode:
        lines = done.stderr.decode().strip().splitlines() or [f"git {arguments[0]} failed"]
        raise NoHistoryError(lines[-1])
    return done.stdout


def check_out(commit: str, folder: Path) -> Path:
    """The sources of `commit` in the new `folder`. Raises NoHistoryError."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as files:
        files.extractall(folder, filter="data")
    return folder


def differs(commit: str, *paths: str) -> bool:
    """True if one of these files, including new ones, differs from `commit`."""
    changed = git("diff", "--name-only", commit, "--", *paths)
    return bool(changed or git("ls-files", "--others", "--exclude-standard", "--", *paths))


def surroundings(checkout: Path, folder: Path, libraries: Path | None) -> dict[str, str]:
    """The environment in which `gradwire` is `checkout`'s, with the new `folder` for what that takes.

    The checkout itself must not be on the path: its folder `codecs` would hide Python's own module. Without
    `libraries` of compiled kernels the definitions run, which give the same bytes.
    """
    (folder / "none").mkdir(parents=True)
    (folder / "gradwire").symlink_to(checkout / "gradwire")
    (folder / "sitecustomize.py").write_text(REDIRECT)
    return {
        "PYTHONPATH": str(folder),
        "GRADWIRE_SOURCES": str(folder),
        "GRADWIRE_LIBRARIES": str(libraries or folder / "none"),
        "OMP_NUM_THREADS": "1",
    }


def own_libraries(commit: str | None) -> Path | None:
    """The folder of this Python's compiled kernels, if they are those of `commit` (None: of this tree)."""
    if commit is not None and differs(commit, *COMPILED):
        return None
    from gradwire.codecs.native.loading import library

    found = library("cpu")
    return None if found is None else found.path.parent


def built_simulator(checkout: Path, folder: Path) -> Path:
    """The new `folder` with the simulated clock's engine as `checkout` has it, and no kernels. Raises
    NoHistoryError where it cannot be built."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    cmake = shutil.which("cmake", path=programs)
    if cmake is None:
        raise NoHistoryError("its simulated clock must be built, and cmake is not installed")
    for step in (
        ["-S", str(checkout), "-B", str(folder), "-G", "Ninja", "-DGRADWIRE_CUDA=OFF"],
        ["--build", str(folder), "--target", "gradwire_simulator"],
    ):
        done = subprocess.run(
            [cmake, *step], env={**os.environ, "PATH": programs}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise NoHistoryError(
                f"its simulated clock cannot be built: {lines[-1] if lines else 'cmake failed'}"
            )
    return folder / SIMULATOR


def run_at(
    commit: str | None, cases: Mapping[str, Case], folder: Path, *, as_virtual: bool
) -> Iterator[tuple[str, Figures | str]]:
    """Runs the cases at `commit` (None: with this working tree) as commands; returns each case's figures, or
    why it failed.

    `as_virtual` hosts the workers of real runs in that process wherever that gives the same, in less time.
    Raises NoHistoryError where the commit is not to be had.
    """
    checkout = ROOT if commit is None else check_out(commit, folder / "sources")
    libraries = own_libraries(commit)
    if libraries is None and (checkout / SIMULATOR).is_dir():  # before, the engine was Python
        libraries = built_simulator(checkout, folder / "built")
    environment = os.environ | surroundings(checkout, folder / "path", libraries)
    places = {name: folder / f"case{number}" for number, name in enumerate(cases)}
    commands = {
        name: commands_of(case, places[name], real=case.real_only or (case.real and not as_virtual))
        for name, case in cases.items()
    }
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("commanded.py"))],
        cwd=checkout,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        print(json.dumps({"renamed": RENAMED, "cases": list(commands.values())}), file=process.stdin)
        process.stdin.close()
        for name, case in cases.items():
            error = json.loads(process.stdout.readline() or '"the process ended"')
            yield name, error or figures(case, places[name])
    finally:
        process.kill()
        process.wait()


def commands_of(case: Case, folder: Path, *, real: bool) -> list[list[str]]:
    """The overrides of the commands that a case is; none is stopped on its way."""
    world = "local" if real else "virtual"
    train = [*SHORT, f"cluster={world}", *case.overrides, f"hydra.run.dir={folder / 'run'}"]
    then = [override.format(run=folder / "run") for override in case.then]
    return [train, [*then, f"hydra.run.dir={folder / 'then'}"]] if then else [train]
