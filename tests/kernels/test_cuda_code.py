"""The CUDA kernels' machine code has not become worse; and the gate finds code that has."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cuda_code
import pytest
from cuda_code import Code, complaints

GOOD = Code(registers=40, instructions=1000, wide_loads=4, wide_stores=2, local=0)


def figures(**kernels: Code) -> dict[str, Any]:
    known = {name: asdict(code) for name, code in kernels.items()}
    return {"compiler": "13.0", "hot": ["hot*"], "kernels": known}


def test_the_code_of_hot_kernels() -> None:
    if cuda_code.tools() is None:
        pytest.skip("no cuobjdump and nvdisasm: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    built = cuda_code.built()
    if built is None:
        pytest.skip("the kernels for CUDA have not been compiled for this: make gate, which needs nvcc")
    found = cuda_code.kernels(built)
    assert found
    worse = complaints(found, cuda_code.read_figures(), cuda_code.compiler())
    assert not worse, "\n".join([*worse, f"if it has to be so: {cuda_code.RECORD}"])


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
        ({"registers": 42, "instructions": 1049}, None),
        ({"wide_loads": 1, "wide_stores": 1}, None),
        ({"registers": 43}, "hot one: 43 registers, recorded are 40"),
        ({"instructions": 1051}, "hot one: 1051 instructions, recorded are 1000"),
        ({"wide_loads": 0}, "hot one: no wide loads of 16 bytes, recorded are 4"),
        ({"wide_stores": 0}, "hot one: no wide stores of 16 bytes, recorded are 2"),
        ({"local": 3}, "hot one: 3 accesses to local memory, none are allowed"),
    ],
)
def test_what_is_worse_is_named_with_both_numbers(changes: dict[str, int], complaint: str | None) -> None:
    known = figures(**{"hot one": GOOD})
    found = complaints({"hot one": replace(GOOD, **changes)}, known, "13.0")
    assert found == ([] if complaint is None else [complaint])


def test_every_hot_kernel_has_figures_and_every_figure_its_kernel() -> None:
    known = figures(**{"hot old": GOOD})
    found = complaints({"hot new": GOOD, "cold": GOOD}, known, "13.0")
    assert found == ["hot new: is hot, and has no figures", "hot old: has figures, but is gone"]


def test_another_compiler_makes_other_code() -> None:
    worse = replace(GOOD, registers=99)
    assert not complaints({"hot one": worse}, figures(**{"hot one": GOOD}), "12.9")
    assert complaints({"cold": replace(GOOD, local=1)}, figures(), "12.9")


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
