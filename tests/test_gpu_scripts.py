"""The scripts that are packed for a machine with a GPU, as far as they run without one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parent / "gpu"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rounds_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """A codec's failure is a line of its own and ends nothing."""
    given = ("--device", "cpu", "--round", "2:ring:1000", "--codec", "dynamiq", "--codec", "mxfp8")
    script("measure_rounds").main(list(given))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["codec"] for line in lines] == ["dynamiq", "mxfp8"]
    assert all(line["n"] == 2 and line["eager_host_ms_per_rank"] > 0 for line in lines)


def test_operations_are_timed_without_their_definitions(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--device", "cpu", "--kernels", "cpu", "--coordinates", "4096", "bf16.encode")
    script("measure_operations").main(list(given))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["dtype"] for row in rows} == {"bfloat16", "float32"}
    assert {row["implementation"] for row in rows} == {"cpu"}
    assert all(row["numel"] == 4096 and row["times"]["repeats"] >= 3 for row in rows)


def test_hot_operations_exist_and_run() -> None:
    module = script("run_hot_operations")
    calls = module.main(["--device", "cpu", "--coordinates", "2048"])
    assert calls >= 2 * 2 * len(module.OPERATIONS) - 4  # two calls, two types; few have one type only


def test_plain_quantizers_lose_no_more_than_their_bits() -> None:
    module = script("measure_compiled")
    x = torch.randn(1 << 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    decoded = module.int8_accumulate(*module.int8(x), torch.zeros(x.numel()))
    assert (decoded - x).abs().max() < 0.03
    shapes = {name: quantize(x)[0].numel() for name, quantize in module.QUANTIZERS.items()}
    assert shapes == {
        "int8_quantize": 1 << 12,
        "int4_quantize": 1 << 11,
        "int4_stochastic": 1 << 11,
        "mxfp8_quantize": 1 << 12,
    }


@pytest.mark.parametrize("name", ["pack.sh", "on_device.sh"])
def test_shell_scripts_parse(name: str) -> None:
    subprocess.run(["bash", "-n", FOLDER / name], check=True)


def test_an_unknown_measurement_is_refused_before_any_begins(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["bash", FOLDER / "on_device.sh", "tests", "raws"],
        env={"OUT": str(tmp_path / "out"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2 and "raws is none of: tests rows" in ran.stdout
    assert not (tmp_path / "out").exists()


def test_what_is_packed_is_pinned() -> None:
    lock = (FOLDER.parents[1] / "requirements.lock").read_text()
    line = next(
        line for line in (FOLDER / "pack.sh").read_text().splitlines() if line.startswith("packages=")
    )
    packages = line.split(":-")[1].rstrip("}").split()
    assert len(packages) == 5
    assert all(f"\n{package}==" in lock for package in (*packages, "antlr4-python3-runtime"))
