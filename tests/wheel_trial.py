"""Tries a wheel as its users would: `python tests/wheel_trial.py <folder with the wheel>`.

The wheel is installed by pip into two environments that are new and empty. Next to it each finds the packages
that the wheel's metadata requires, with their dependencies, and nothing else: `gradwire` has torch, numpy and
theirs, `gradwire[harness]` the harness's, too. The packages are those of the environment that runs this,
linked and not downloaded again, so pip's own choice of versions is not tried.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TESTS = Path(__file__).resolve().parent
EXAMPLE = TESTS.parent / "examples" / "ddp.py"

TINY = (
    "size=tiny",
    "train.steps=2",
    "train.warmup_steps=1",
    "eval.max_sequences=4",
    "measure.warmup_steps=1",
)


def needed(requirement: Requirement, found: set[tuple[str, frozenset[str]]]) -> None:
    """Add to `found` the distributions that `requirement` names, with their extras, here and now."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return
    key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
    if key in found:
        return
    found.add(key)
    for line in metadata.requires(requirement.name) or ():
        needs = Requirement(line)
        extras = ["", *requirement.extras]
        if needs.marker is None or any(needs.marker.evaluate({"extra": extra}) for extra in extras):
            needs.marker = None
            needed(needs, found)


def link(names: set[str], folder: Path) -> None:
    """Links everything that these distributions have installed into `folder`."""
    folder.mkdir()
    for name in names:
        distribution = metadata.distribution(name)
        tops = {
            path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            target, place = Path(str(distribution.locate_file(top))), folder / top
            if target.exists() and not place.exists():
                place.symlink_to(target)


def environment(place: Path, wheel: Path, extra: str) -> Path:
    """A new environment with the wheel and what it and its `extra` require; its folder of programs."""
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"),
            *("--quiet", "--no-deps", wheel),
        ],
        check=True,
    )
    (site,) = (place / "lib").glob("python*/site-packages")
    (own,) = metadata.distributions(name="gradwire", path=[str(site)])
    found: set[tuple[str, frozenset[str]]] = set()
    for line in own.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            needed(requirement, found)
    names = {name for name, _ in found} - {"gradwire"}
    link(names, place / "packages")
    (site / "packages.pth").write_text(f"{place / 'packages'}\n")
    print(f"gradwire{f'[{extra}]' if extra else ''}: {len(names)} packages: {', '.join(sorted(names))}")
    return place / "bin"


def run(folder: Path, *command: str | Path, code: int = 0, **variables: str) -> str:
    """The output of a command in `folder`, with a home of its own. Fails on another code."""
    home = folder.parent / "home"
    variables |= {"HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**variables, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == code, f"{' '.join(map(str, command))} ended with {ran.returncode}:\n{said}"
    print(
        "ok:", " ".join(Path(part).name if isinstance(part, Path) else part for part in command), flush=True
    )
    return said


def try_the_library(programs: Path, folder: Path) -> None:
    """Tries the library with torch, numpy and their dependencies alone."""
    python = programs / "python"
    said = run(folder, python, TESTS / "light_core.py")
    assert 'pip install "gradwire[harness]"' in said
    assert "rank 0 sent" in run(
        folder, python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE
    )
    for command in ([programs / "gradwire"], [python, "-m", "gradwire"]):
        said = run(folder, *command, "size=tiny", code=1)
        assert 'pip install "gradwire[harness]"' in said and said.count("\n") == 1, said


def try_the_command(programs: Path, folder: Path) -> None:
    """Starts `gradwire` in every way, in an empty folder."""
    python, command = programs / "python", programs / "gradwire"
    assert "codec=" in run(folder, command, "--help")
    assert "size=tiny can run here" in run(folder, command, "task=doctor")
    run(folder, command, *TINY, "cluster.workers=2")
    (first,) = (folder / "outputs").iterdir()
    assert (first / "DONE").exists()
    summary = json.loads((first / "summary.json").read_text())
    assert len(summary["code_hash"]) == 12 and summary["commit"] is None
    assert summary["kernel_backend"] == "cpu"
    swept = [command, "--multirun", *TINY, "cluster=virtual", "cluster.workers=2", "codec=bf16,fp32"]
    assert "tables and plots in" in run(folder, *swept)
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(
        folder, *launcher, "-m", "gradwire", *TINY
    )  # the first run again, however it is started: it is not repeated
    two_launchers(folder, python, [command, *TINY, "seed=1"])
    run(folder, python, "-m", "gradwire", *TINY, "cluster.workers=2", "seed=2")
    runs = list((folder / "outputs").glob("*/DONE"))
    assert len(runs) == 5 and [path.name for path in folder.iterdir()] == ["outputs"], runs


def two_launchers(folder: Path, python: Path, command: list[str | Path]) -> None:
    """One rank from each of two launchers that meet at an endpoint, as on two nodes: docs/clusters.md."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    nodes = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    launched = [python, "-m", "torch.distributed.run", *nodes, "--rdzv-id", "gradwire", *command]
    with ThreadPoolExecutor(2) as both:
        for said in both.map(lambda _: run(folder, *launched, GLOO_SOCKET_IFNAME="lo"), range(2)):
            assert "Traceback" not in said


def main(wheels: Path) -> None:
    (wheel,) = wheels.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="gradwire-wheel-") as name:
        for extra, trial in (("", try_the_library), ("harness", try_the_command)):
            place = Path(name) / (extra or "core")
            folder = place / "somewhere"
            programs = environment(place, wheel.resolve(), extra)
            folder.mkdir()
            trial(programs, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
