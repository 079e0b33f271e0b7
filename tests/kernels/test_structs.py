"""Structs are read from the libraries' own declarations: fields may move, change their type and go."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from emulation import NOT_BUILT

from gradwire.codecs.native.call import run
from gradwire.codecs.native.loading import BUCKETS, Library, LibraryName, library, read_declarations

CALL = "typedef struct { int32_t bytes, device; uint64_t stream; int32_t threads, dtype; } gradwire_call;"

WRONG_SIZE = -1

FUNCTION = "GRADWIRE_API int gradwire_note(const gradwire_note_arguments* args);"

PLANTED = """
#include <stdint.h>
#define GRADWIRE_API extern "C" __attribute__((visibility("default")))
{declared}
GRADWIRE_API const char* gradwire_error(int) {{ return "refused"; }}
GRADWIRE_API const char* gradwire_declarations(void) {{ return R"({declared})"; }}
int gradwire_note(const gradwire_note_arguments* args) {{
  if (args->call.bytes != (int32_t)sizeof(*args)) return -1;
  args->noted[0] = args->first;
  args->noted[1] = args->second;
  return args->call.dtype;
}}
"""


def planted(folder: Path, fields: str) -> Library:
    """A library with one operation, whose struct has these fields: it notes `first` and `second`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    struct = f"typedef struct {{ gradwire_call call; {fields} }} gradwire_note_arguments;"
    declared = "\n".join((CALL, struct, FUNCTION))
    source, path = folder / "planted.cpp", folder / "libplanted.so"
    source.write_text(PLANTED.format(declared=declared))
    subprocess.run([compiler, "-shared", "-fPIC", "-O0", source, "-o", path], check=True)
    handle = ctypes.CDLL(str(path))
    handle.gradwire_error.restype = handle.gradwire_declarations.restype = ctypes.c_char_p
    return Library("cpu", path, handle)


@pytest.mark.parametrize(
    "fields",
    [
        "double* noted; int32_t first, second;",
        "double* noted; int32_t second, first;",
        "float second; int32_t first; double* noted;",
        "int32_t other[3]; double* noted; float first, second;",
    ],
)
def test_fields_may_move_and_change_their_type(fields: str, tmp_path: Path) -> None:
    noted = torch.zeros(2, dtype=torch.float64)
    run(planted(tmp_path, fields), "note", noted.device, first=3, second=4, noted=(noted, 2))
    assert noted.tolist() == [3, 4]


def test_a_field_that_is_gone_is_named(tmp_path: Path) -> None:
    found = planted(tmp_path, "double* noted; int32_t first, second;")
    with pytest.raises(ImportError, match="gradwire_note_arguments.*third.*; build the package again"):
        run(found, "note", torch.device("cpu"), third=1)
    with pytest.raises(ImportError, match="no sum: build the package again"):
        run(found, "sum", torch.device("cpu"))
    with pytest.raises(ImportError, match="no LIMIT: build the package again"):
        found.constant("LIMIT")


def test_a_number_that_a_field_cannot_hold_is_refused(tmp_path: Path) -> None:
    found = planted(tmp_path, "double* noted; int32_t first, second;")
    with pytest.raises(TypeError):
        run(found, "note", torch.device("cpu"), first=0.5)


def test_the_dtype_of_a_bucket_is_told() -> None:
    found = library("cpu")
    if found is None:
        pytest.skip("the kernels for CPUs are not built")
    assert [found.constant("GRADWIRE_FLOAT32"), found.constant("GRADWIRE_BFLOAT16")] == [0, 1]
    assert (torch.float32, torch.bfloat16) == BUCKETS


@pytest.mark.parametrize("name", ["cpu", "emulated"])
def test_every_struct_has_the_size_that_its_library_expects(name: LibraryName) -> None:
    found = library(name)
    if found is None:
        pytest.skip(NOT_BUILT if name == "emulated" else "the kernels for CPUs are not built")
    operations = found.declarations.operations
    assert "dynamiq_hop" in operations
    for operation in operations:
        struct, function = found.operation(operation)
        arguments: Any = struct()
        arguments.call.bytes = ctypes.sizeof(arguments) + 8
        assert function(ctypes.byref(arguments)) == WRONG_SIZE
        arguments.call.bytes = ctypes.sizeof(arguments)
        assert function(ctypes.byref(arguments)) != WRONG_SIZE, operation


def test_declarations_are_read_as_c_means_them() -> None:
    declared = read_declarations(
        "enum { SIGN = 0, LARGEST = 24 };  // a comment; typedef struct { int32_t no; } gradwire_no;\n"
        "typedef struct {\n  float span[2], table[2][3];  // two;\n  int32_t kind;\n} gradwire_values;\n"
        "typedef struct {\n  const gradwire_values* values;\n  const void* x;\n  int64_t numel, first;\n"
        "} gradwire_family;\nGRADWIRE_API int gradwire_family_encode(const gradwire_family* args);\n"
    )
    assert declared.constants == {"SIGN": 0, "LARGEST": 24}
    assert declared.operations == {"family_encode": "gradwire_family"}
    assert list(declared.structs) == ["gradwire_values", "gradwire_family"]
    values, family = declared.structs["gradwire_values"], declared.structs["gradwire_family"]
    assert ctypes.sizeof(values) == 4 * (2 + 6 + 1)
    assert family.tensors == {"values": (torch.uint8,), "x": BUCKETS}
