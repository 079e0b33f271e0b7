"""The compiled libraries, and the structs that their functions take.

No C declaration is repeated in Python: every library carries the declarations of the headers that it was
built from (`csrc/include/gradwire`), and the structs are parsed from that text. So a field's offset, type and
name are defined once, and a call that sets a field unknown to the library is refused.

The interface is plain C (`csrc/include/gradwire/abi.h`), so one build serves every Python and every PyTorch.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

_NUMBERS: dict[str, Any] = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}

BUCKETS = (torch.float32, torch.bfloat16)
"""The dtypes behind a `void*`, which kernels read and write."""

_TENSORS: dict[str, tuple[torch.dtype, ...]] = {
    "void": BUCKETS,
    "uint8_t": (torch.uint8,),
    "uint16_t": (torch.bfloat16,),
    "int32_t": (torch.int32,),
    "uint32_t": (torch.int32,),
    "int64_t": (torch.int64,),
    "uint64_t": (torch.int64,),
    "float": (torch.float32,),
    "double": (torch.float64,),
}

_COMMENT = re.compile(r"//[^\n]*")
_STRUCT = re.compile(r"typedef struct \{([^}]*)\} (\w+);")
_FIELD = re.compile(r"(?:const )?(\w+)(\*?)\s+(.+)", re.DOTALL)
_OPERATION = re.compile(r"GRADWIRE_API int gradwire_(\w+)\(const (\w+)\* args\);")
_CONSTANT = re.compile(r"\b([A-Z]\w*) = (-?\d+)\b")


class Struct(ctypes.Structure):
    """A ctypes struct of the headers that rejects attributes other than its fields; `tensors` gives the
    dtypes that each pointer may point to."""

    __slots__ = ()
    tensors: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {}


@dataclass(frozen=True)
class Declarations:
    """The declarations of a library's headers, by name; `operations` maps each operation to its struct."""

    structs: dict[str, type[Struct]]
    operations: dict[str, str]
    constants: dict[str, int]


def read_declarations(text: str) -> Declarations:
    """Parses C declarations in the form that the headers use: `typedef struct {…} name;`, exported functions
    that take one struct, and enumerators with a value.

    Raises KeyError for a field whose type is unknown.
    """
    text = _COMMENT.sub("", text)
    structs: dict[str, type[Struct]] = {}
    for body, name in _STRUCT.findall(text):
        structs[name] = _struct(name, body, structs)
    operations = dict(_OPERATION.findall(text))
    return Declarations(structs, operations, {name: int(value) for name, value in _CONSTANT.findall(text)})


def _struct(name: str, body: str, known: dict[str, type[Struct]]) -> type[Struct]:
    fields: list[tuple[str, Any]] = []
    tensors: dict[str, tuple[torch.dtype, ...]] = {}
    for kind, is_pointer, field, sizes in _fields(body):
        if is_pointer:  # to a struct: its bytes
            tensors[field] = (torch.uint8,) if kind in known else _TENSORS[kind]
            fields.append((field, ctypes.c_void_p))
        else:
            ctype = known[kind] if kind in known else _NUMBERS[kind]
            for size in reversed(sizes):
                ctype = ctype * size
            fields.append((field, ctype))
    return type(name, (Struct,), {"__slots__": (), "_fields_": fields, "tensors": tensors})


def _fields(body: str) -> Iterator[tuple[str, bool, str, list[int]]]:
    """The type, pointer flag, name and array sizes of each field; `float a[2], b[2];` yields two fields."""
    for declaration in filter(None, map(str.strip, body.split(";"))):
        match = _FIELD.fullmatch(declaration)
        assert match, f"a declaration that is not understood: {declaration}"
        kind, pointer, names = match.groups()
        for field in names.split(","):
            name, *sizes = re.findall(r"\w+", field)
            yield kind, bool(pointer), name, [int(size) for size in sizes]


LibraryName = Literal["cpu", "cuda", "emulated"]
"""`emulated`: the sources for CUDA compiled for the CPU, which tests compare with the others."""

ABI_VERSION = 3

DIRECTORY = "GRADWIRE_LIBRARIES"
"""The environment variable that names another folder to look for libraries in."""


Operation = tuple[type[Struct], Callable[[object], int]]
"""An operation of a library: the struct of its arguments, and its function."""


@dataclass(frozen=True, eq=False)
class Library:
    """A loaded library; its functions are attributes of `handle`."""

    name: str
    path: Path
    handle: ctypes.CDLL

    @cached_property
    def declarations(self) -> Declarations:
        """The declarations of the headers that this library was built from."""
        return read_declarations(self.handle.gradwire_declarations().decode())

    def constant(self, name: str) -> int:
        """The value of an enumerator. Raises ImportError if this library has none of that name."""
        if name not in self.declarations.constants:
            raise ImportError(f"{self.path} has no {name}: build the package again")
        return self.declarations.constants[name]

    def operation(self, name: str) -> Operation:
        """The operation of this name. Raises ImportError if the library has none."""
        if name not in self._operations:
            function = getattr(self.handle, f"gradwire_{name}", None)
            struct = self.declarations.operations.get(name)
            if function is None or struct is None:
                raise ImportError(f"{self.path} has no {name}: build the package again")
            self._operations[name] = self.declarations.structs[struct], function
        return self._operations[name]

    @cached_property
    def _operations(self) -> dict[str, Operation]:
        """Cache of the operations looked up so far, because every call looks its operation up."""
        return {}

    def error(self, code: int) -> str:
        """The meaning of an error code."""
        text: bytes = self.handle.gradwire_error(code)
        return text.decode()


@lru_cache(maxsize=3)
def library(name: LibraryName) -> Library | None:
    """The library of these kernels; None if it was not built. Raises ImportError as `load_library` does."""
    return load_library(name)


def load_library(name: str) -> Library | None:
    """`libgradwire_<name>.so`, None if it was not built.

    Raises ImportError for a library that was built from other sources than this Python code.
    """
    for directory in _directories():
        path = directory / f"libgradwire_{name}.so"
        if path.exists():
            return _load(name, path)
    return None


def _directories() -> Iterator[Path]:
    """Folders to search for libraries; an editable install keeps its libraries near `site-packages`, not in
    the sources."""
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
    """Number of GPUs that the CUDA kernels can run on; 0 if there are no CUDA kernels or no driver."""
    cuda = library("cuda")
    return 0 if cuda is None else int(cuda.handle.gradwire_cuda_devices())


def old_driver() -> str | None:
    """The reason why this driver cannot run the CUDA kernels: its major version is older than that of the
    CUDA runtime in the library. None if it can, or without CUDA kernels or a driver."""
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
    """The instruction set that the CPU kernels use here: `base`, `v3` (AVX2) or `v4` (AVX-512)."""
    cpu = library("cpu")
    if cpu is None:
        return None
    cpu.handle.gradwire_cpu_level.restype = ctypes.c_char_p
    return str(cpu.handle.gradwire_cpu_level().decode())


def choose_cpu_level(name: str) -> bool:
    """Use this instruction set, or the best one if the name is empty; returns False if this machine lacks it.
    For tests."""
    cpu = library("cpu")
    assert cpu is not None, "there is no library for CPUs"
    return bool(cpu.handle.gradwire_cpu_choose(name.encode()) == 0)
