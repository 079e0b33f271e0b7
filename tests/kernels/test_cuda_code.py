"""The CUDA kernels' machine code has not become worse; and the gate finds code that has."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cuda_code
import pytest
from cuda_code import Code, Found, complaints

GOOD = Code(registers=64, stack=0, instructions=1000, wide_loads=4, wide_stores=2, local=0)

PATHS = {
    operation: {dtype: {"2": 26.0, "3": 36.0, "4": 35.0, "8": 37.0} for dtype in ("float32", "bfloat16")}
    for operation in cuda_code.LIMITS
}


def figures(**kernels: Code) -> dict[str, Any]:
    known = {name: asdict(code) for name, code in kernels.items()}
    return {"compiler": "13.0", "hot": ["hot*"], "kernels": {"sm_90": known}, "paths": {"sm_90": PATHS}}


def worse(kernels: dict[str, Code], known: dict[str, Any], version: str = "13.0") -> list[str]:
    return complaints(Found(kernels, PATHS), "sm_90", known, version)


def test_the_code_of_hot_kernels() -> None:
    if cuda_code.tools() is None:
        pytest.skip("no cuobjdump and nvdisasm: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    built = cuda_code.built()
    if built is None:
        pytest.skip("the kernels for CUDA have not been compiled for this: make gate, which needs nvcc")
    found = {name: cuda_code.code_of(built, name) for name in cuda_code.ARCHITECTURES}
    assert all(each.kernels and each.paths for each in found.values())
    recorded, version = cuda_code.read_figures(), cuda_code.compiler()
    lines = [line for name, each in found.items() for line in complaints(each, name, recorded, version)]
    assert not lines, "\n".join([*lines, f"if it has to be so: {cuda_code.RECORD}"])


def test_a_library_of_other_sources_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_code, "FOLDER", tmp_path)
    assert cuda_code.built() is None
    (tmp_path / "sources").write_text("of an earlier commit")
    assert cuda_code.built() is None
    (tmp_path / "sources").write_text(cuda_code.fingerprint())
    assert cuda_code.built() == tmp_path / "csrc" / "libgradwire_cuda.so"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"instructions": 1049}, None),
        ({"registers": 57}, None),
        ({"wide_loads": 1, "wide_stores": 1}, None),
        ({"registers": 67}, "hot one: 67 registers leave room for 3 blocks, the recorded 64 for 4"),
        ({"instructions": 1051}, "hot one: 1051 instructions, recorded are 1000"),
        ({"wide_loads": 0}, "hot one: no wide loads of 16 bytes, recorded are 4"),
        ({"wide_stores": 0}, "hot one: no wide stores of 16 bytes, recorded are 2"),
        ({"local": 3}, "hot one: 3 accesses to local memory, none are allowed"),
        ({"stack": 8}, "hot one: a stack of 8 bytes, none is allowed"),
    ],
)
def test_what_is_worse_is_named_with_both_numbers(changes: dict[str, int], complaint: str | None) -> None:
    found = worse({"hot one": replace(GOOD, **changes)}, figures(**{"hot one": GOOD}))
    assert found == ([] if complaint is None else [f"sm_90 {complaint}"])


@pytest.mark.parametrize(
    ("width", "now", "complaint"),
    [
        ("8", 37.7, None),
        ("8", 37.8, "bfloat16 to 8 bits: 37.8 a coordinate, recorded are 37.0"),
        ("3", 40.26, "bfloat16: 40.26 a coordinate to 3 bits are more than 1.15 times the 35.0 to 4"),
        ("2", 39.51, "bfloat16 to 2 bits: 39.51 a coordinate, the limit is 39.5"),
    ],
)
def test_longer_hot_paths_are_named(width: str, now: float, complaint: str | None) -> None:
    longer = {
        **PATHS,
        "compress": {**PATHS["compress"], "bfloat16": PATHS["compress"]["bfloat16"] | {width: now}},
    }
    lines = complaints(Found({}, longer), "sm_90", figures(), "13.0")
    assert lines == [] if complaint is None else f"sm_90 compress {complaint}" in lines


def test_every_hot_kernel_has_figures_and_every_figure_its_kernel() -> None:
    known = figures(**{"hot old": GOOD})
    found = worse({"hot new": GOOD, "cold": GOOD}, known)
    assert found == ["sm_90 hot new: is hot, and has no figures", "sm_90 hot old: has figures, but is gone"]


def test_another_compiler_makes_other_code() -> None:
    assert not worse({"hot one": replace(GOOD, registers=99)}, figures(**{"hot one": GOOD}), "12.9")
    assert worse({"cold": replace(GOOD, local=1)}, figures(), "12.9")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (
            "_ZN46_GLOBAL__N__49cd49fe_13_statistics_cu_b894d8de10statisticsIfEEv19gradwire_statisticsb",
            "statistics.cu statistics<float>",
        ),
        (
            "_ZN43_GLOBAL__N__0f1e2d3c_10_dynamiq_cu_b894d8de4packItLi8ELb1EEEv16gradwire_dynamiq",
            "dynamiq.cu pack<unsigned short, 8, true>",
        ),
    ],
)
def test_names_do_not_change_from_build_to_build(symbol: str, name: str) -> None:
    assert cuda_code.readable(symbol) == name
