"""Python, the packages the project depends on, its own version, and the available kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from gradwire.codecs.native.loading import cpu_level, cuda_devices, library, old_driver
from gradwire.codecs.plugins import ENTRY_POINTS, announced
from gradwire.harness.doctor.findings import Finding, FindingsSection, found_or_missing
from gradwire.harness.record.provenance import git_state
from gradwire.harness.timing.simulate.engine import library as simulator

OLDEST, NEWEST = (3, 11), (3, 13)


@dataclass(frozen=True)
class Package:
    """A package by its name on PyPI, and what is unavailable without it."""

    name: str
    disables: str
    needed: bool = False


PACKAGES = (
    Package("torch", "everything", needed=True),
    Package("numpy", "everything", needed=True),
    Package("transformers", "every model", needed=True),
    Package("tokenizers", "every tokenizer", needed=True),
    Package("accelerate", "training", needed=True),
    Package("safetensors", "checkpoints and weights", needed=True),
    Package("hydra-core", "the command line", needed=True),
    Package("matplotlib", "the plots every run ends with", needed=True),
    Package("datasets", "the papers' data sets (not dataset=embedded or your own text)"),
    Package("lm-eval", "scoring on lm-eval's tasks"),
    Package("wandb", "tracking=wandb and task=sync"),
)


def version_of(package: str) -> str | None:
    """The installed version; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def software(
    version_of: Callable[[str], str | None] = version_of, python: Sequence[int] = sys.version_info[:3]
) -> FindingsSection:
    """Versions of Python and the packages; `version_of` returns None for a package that is not installed."""
    findings = [_python(python)]
    for package in PACKAGES:
        findings.append(
            found_or_missing(
                package.name,
                version_of(package.name),
                package.disables,
                f"pip install {package.name}",
                needed=package.needed,
            )
        )
    return FindingsSection("Software", findings)


def sources(
    state: tuple[str | None, bool | None] | None = None, version: str | None = None
) -> FindingsSection:
    """gradwire's version, its commit, whether the sources differ from that commit, and the kernels."""
    commit, dirty = git_state() if state is None else state
    found = None if commit is None else f"{commit[:12]}{', with changes' if dirty else ''}"
    findings = [
        found_or_missing("gradwire", version or version_of("gradwire"), "everything", "make", needed=True),
        found_or_missing("commit", found, "the commit in records", "run from a git checkout"),
        *libraries(),
        *plugins(),
    ]
    return FindingsSection("gradwire", findings)


def plugins() -> list[Finding]:
    """The plug-ins that installed packages offer for `codec=`, `topology=` and `parallel=`, without importing
    them."""
    return [
        Finding(f"{kind}={name}", f"a plug-in, {point.value}")
        for kind in ENTRY_POINTS
        for name, point in sorted(announced(kind).items())
    ]


LEVELS = {"base": "no more than every such CPU has", "v3": "AVX2", "v4": "AVX-512"}


@dataclass(frozen=True)
class Compiled:
    """The compiled parts of this installation: the instruction-set level of the CPU kernels (`level`, None
    without them), the CUDA kernels, the number of GPUs they can run on, and the simulated clock's engine."""

    level: str | None
    cuda: bool
    gpus: int
    simulator: bool
    old_driver: str | None = None
    """The reason why the GPUs' driver cannot run the CUDA kernels."""


def compiled() -> Compiled:
    """The compiled parts that this installation has."""
    return Compiled(
        cpu_level(), library("cuda") is not None, cuda_devices(), simulator() is not None, old_driver()
    )


def libraries(built: Compiled | None = None) -> list[Finding]:
    """Findings on the available implementations of the kernels, which all produce the same bytes, on the
    meaning of `auto`, and on the simulated clock."""
    built = built or compiled()
    auto = "default" if built.level is None else "cpu"
    level = built.level and f"built, level {built.level} ({LEVELS[built.level]})"
    gpus = "no GPU that they can run on" if not built.gpus else f"{built.gpus} GPUs"
    if built.old_driver:
        gpus = f"but {built.old_driver}: update the driver"
    return [
        Finding("kernels", f"auto means {auto} on CPUs, {'cuda' if built.gpus else 'default'} on GPUs"),
        found_or_missing(
            "kernels=cpu",
            level,
            "codecs at full speed: kernels=default, plain PyTorch, is tens of times slower",
            "a C++ compiler, then make install",
        ),
        found_or_missing(
            "kernels=cuda",
            f"built, {gpus}" if built.cuda else None,
            "codecs at full speed on GPUs",
            "nvcc in PATH, then make install GRADWIRE_CUDA=ON",
        ),
        found_or_missing(
            "simulated clock",
            "built" if built.simulator else None,
            "cluster=virtual, network=simulated, task=retime, task=allreduce",
            "a C++ compiler, then make install",
        ),
    ]


def _python(version: Sequence[int]) -> Finding:
    text = ".".join(map(str, version[:3]))
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return Finding("python", text)
    wanted = " to ".join(".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    return Finding("python", text, "needed", "everything", f"Python {wanted}: make PYTHON=<it>")
