"""The scripts that are packed for a machine with a GPU, as far as they run without one."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.record.summary import Summary
from gradwire.harness.report.gpu_record import TOOLS
from gradwire.harness.timing.measure.metrics import METRICS

FOLDER = Path(__file__).parent / "gpu"
NEEDS_A_GPU = ("cluster.device=cuda",)


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


def test_a_dry_run_lists_every_command_and_writes_nothing(tmp_path: Path) -> None:
    parts = ["tests", "rows", "rounds", "compiled", "train", "counters"]
    ran = subprocess.run(
        ["bash", FOLDER / "on_device.sh", *parts],
        env={"OUT": str(tmp_path / "out"), "PATH": "/usr/bin:/bin", "DRY_RUN": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    logs = {line.partition(": ")[0] for line in ran.stdout.splitlines() if not line.startswith("==")}
    sanitizers = {f"{tool}.log" for tool in TOOLS}
    training = {f"train-{codec}.log" for codec in ("bf16", "dynamiq", "mxfp8")}
    figures = {"rows.jsonl", "rounds.jsonl", "compiled.jsonl", "counters.log", "summary.log"}
    assert logs == {"tests.log", *sanitizers, *training, *figures}
    assert not (tmp_path / "out").exists()
    for line in ran.stdout.splitlines():
        if " run.py " in line:  # what the training runs ask for exists and is not refused
            words = line.partition(" run.py ")[2].split()
            assert validate(compose([word for word in words if word not in NEEDS_A_GPU])).train.lr == (
                pytest.approx(6e-4 * (16 / 128) ** 0.5)
            )


def test_counters_are_those_of_the_last_launch(tmp_path: Path) -> None:
    """As Nsight Compute 2025 writes them, with its own remarks before the table."""
    header = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    rows = [
        ("0", "void encode<2>(args)", "gpu__time_duration.sum", "ns", "235,904"),
        ("0", "void encode<2>(args)", "launch__registers_per_thread", "register/thread", "64"),
        ("1", "plan(args)", "gpu__time_duration.sum", "ns", "10656"),
        ("2", "void encode<2>(args)", "gpu__time_duration.sum", "ns", "230,000"),
        ("2", "void encode<2>(args)", "launch__registers_per_thread", "register/thread", "64"),
        ("2", "void encode<2>(args)", "something.else", "", "1"),
    ]
    lines = ["==PROF== Connected to process 7", header, *(",".join(f'"{c}"' for c in row) for row in rows)]
    (tmp_path / "ncu.csv").write_text("\n".join(lines) + "\n")
    script("summarize").main(["counters", str(tmp_path / "ncu.csv"), str(tmp_path / "counters.csv")])
    found = list(csv.DictReader((tmp_path / "counters.csv").open()))
    assert [(row["kernel"], row["ns"], row["registers"]) for row in found] == [
        ("encode<2>(args)", "230000", "64"),
        ("plan(args)", "10656", ""),
    ]


def test_a_summary_has_every_figure_that_is_kept_of_it() -> None:
    assert set(script("summarize").FIGURES) <= {field.name for field in fields(Summary)} | set(METRICS)


def test_architectures_of_the_kernels() -> None:
    listed = "ELF file 1: a.1.sm_90.cubin\nELF file 2: a.2.sm_80.cubin\nELF file 3: b.1.sm_90.cubin\n"
    assert script("describe_machine").architectures(listed) == "sm_80, sm_90"


def test_a_folder_is_of_one_device_and_commit(tmp_path: Path) -> None:
    module, path = script("describe_machine"), tmp_path / "machine.json"
    first = module.with_command(path, {"commit": "a", "device": "H100"}, "tests")
    path.write_text(json.dumps(first))
    both = module.with_command(path, {"commit": "a", "device": "H100"}, "rows")
    assert both["commands"] == ["tests", "rows"]
    with pytest.raises(ValueError, match="is of commit a, and this is b; choose another OUT"):
        module.with_command(path, {"commit": "b", "device": "H100"}, "rows")


def test_what_is_packed_is_pinned() -> None:
    lock = (FOLDER.parents[1] / "requirements.lock").read_text()
    line = next(
        line for line in (FOLDER / "pack.sh").read_text().splitlines() if line.startswith("packages=")
    )
    packages = line.split(":-")[1].rstrip("}").split()
    assert len(packages) == 5
    assert all(f"\n{package}==" in lock for package in (*packages, "antlr4-python3-runtime"))
