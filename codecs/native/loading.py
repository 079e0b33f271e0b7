"""The compiled libraries: where they are, and whether they can be used.

They are plain C (`csrc/include/gradwire/abi.h`), so one build serves every Python and every PyTorch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from gradwire.codecs.native.structs import Declarations, Struct, read_declarations

LibraryName = Literal["cpu", "cuda", "emulated"]
"""`emulated`: the sources for CUDA compiled for the CPU, which tests compare with the others."""

ABI_VERSION = 3

DIRECTORY = "GRADWIRE_LIBRARIES"
"""The environment variable that names another folder to look for libraries in."""


Operation = tuple[type[Struct], Callable[[object], int]]
"""An operation of a library: the struct of its arguments, and its function."""


@dataclass(frozen=True, eq=False)
class Library:
    """A loaded library; `handle` has its functions."""

    name: str
    path: Path
    handle: ctypes.CDLL

    @cached_property
    def declarations(self) -> Declarations:
        """What the headers declare that this library was built from."""
        return read_declarations(self.handle.gradwire_declarations().decode())

    def constant(self, name: str) -> int:
        """The value of an enumerator. Raises ImportError if this library has none of that name."""
        if name not in self.declarations.constants:
            raise ImportError(f"{self.path} has no {name}: build the package again")
        return self.declarations.constants[name]

    def operation(self, name: str) -> Operation:
        """Raises ImportError if this library has no operation of this name."""
        if name not in self._operations:
            function = getattr(self.handle, f"gradwire_{name}", None)
            struct = self.declarations.operations.get(name)
            if function is None or struct is None:
                raise ImportError(f"{self.path} has no {name}: build the package again")
            self._operations[name] = self.declarations.structs[struct], function
        return self._operations[name]

    @cached_property
    def _operations(self) -> dict[str, Operation]:
        """Those that were asked for: a call looks its own up every time."""
        return {}

    def error(self, code: int) -> str:
        """What an error code means."""
        text: bytes = self.handle.gradwire_error(code)
        return text.decode()


@lru_cache(maxsize=3)
def library(name: LibraryName) -> Library | None:
    """These kernels, None if they were not built. Raises ImportError as `load_library` does."""
    return load_library(name)


def load_library(name: str) -> Library | None:
    """`libgradwire_<name>.so`, None if it was not built.

    Raises ImportError for one that was built from other sources than this Python code.
    """
    for directory in _directories():
        path = directory / f"libgradwire_{name}.so"
        if path.exists():
            return _load(name, path)
    return None


def _directories() -> Iterator[Path]:
    """Where libraries may lie: an editable install has its own beside `site-packages`, not the sources."""
    if directory := os.environ.get(DIRECTORY):
        yield Path(directory)
        return
    import gradwire

    for directory in gradwire.__path__:
        yield Path(directory) / "lib"


def _load(name: str, path: Path) -> Library:
    handle = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    version = handle.gradwire_abi_version()
    if version != ABI_VERSION:
        raise ImportError(f"{path} has version {version}, expected {ABI_VERSION}: build the package again")
    handle.gradwire_error.restype = handle.gradwire_declarations.restype = ctypes.c_char_p
    return Library(name, path, handle)


def cuda_devices() -> int:
    """GPUs that the kernels for CUDA can run on: 0 without them, or without a driver."""
    cuda = library("cuda")
    return 0 if cuda is None else int(cuda.handle.gradwire_cuda_devices())


def old_driver() -> str | None:
    """Why this driver cannot run the kernels for CUDA: it is of an earlier major version than the runtime in
    their library. None where it can, and without the kernels or without a driver."""
    cuda = library("cuda")
    return None if cuda is None else _old_driver(cuda)


@lru_cache(maxsize=1)
def _old_driver(cuda: Library) -> str | None:
    runtime, driver = int(cuda.handle.gradwire_cuda_runtime()), int(cuda.handle.gradwire_cuda_driver())
    if driver == 0 or driver // 1000 >= runtime // 1000:
        return None
    built, there = (f"{version // 1000}.{version % 1000 // 10}" for version in (runtime, driver))
    return f"the driver runs CUDA {there}, the kernels were built with CUDA {built}"


def cpu_level() -> str | None:
    """Which instructions the kernels for CPUs use here: `base`, `v3` (AVX2) or `v4` (AVX-512)."""
    cpu = library("cpu")
    if cpu is None:
        return None
    cpu.handle.gradwire_cpu_level.restype = ctypes.c_char_p
    return str(cpu.handle.gradwire_cpu_level().decode())


def choose_cpu_level(name: str) -> bool:
    """Use this level, the best one for an empty name; False if this machine does not have it. For tests."""
    cpu = library("cpu")
    assert cpu is not None, "there is no library for CPUs"
    return bool(cpu.handle.gradwire_cpu_choose(name.encode()) == 0)
