"""The structs of a library's calls, as ctypes sees them.

Nothing here mirrors C: every library carries the declarations of the headers that it was built from
(`csrc/include/gradwire`), and the structs are read from that text. So place, type and name of a field have
one definition, and a call that sets a field which a library does not have is refused.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

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
"""What a `void*` points to: the dtypes that kernels read and write."""

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
    """A struct of the headers, which takes no attributes but its fields; `tensors` has the dtypes of what
    each pointer points to."""

    __slots__ = ()
    tensors: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {}


@dataclass(frozen=True)
class Declarations:
    """What the headers of a library declare, by name: `operations` has the struct of each operation."""

    structs: dict[str, type[Struct]]
    operations: dict[str, str]
    constants: dict[str, int]


def read_declarations(text: str) -> Declarations:
    """Reads C declarations as the headers write them: `typedef struct {…} name;`, exported functions of one
    struct, and enumerators with a value. Raises KeyError for a field of a type that no struct has."""
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
    """Type, whether it is a pointer, name and array sizes of each field: `float a[2], b[2];` are two."""
    for declaration in filter(None, map(str.strip, body.split(";"))):
        match = _FIELD.fullmatch(declaration)
        assert match, f"a declaration that is not understood: {declaration}"
        kind, pointer, names = match.groups()
        for field in names.split(","):
            name, *sizes = re.findall(r"\w+", field)
            yield kind, bool(pointer), name, [int(size) for size in sizes]
