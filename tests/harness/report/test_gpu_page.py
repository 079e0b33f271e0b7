"""The page of what was measured on a GPU, from recorded files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.report.gpu_page import BEGIN, END, family_name, page, write_gpu_page
from gradwire.harness.report.gpu_record import MACHINE, GpuRecord, gpu_folders, read_gpu_record
from gradwire.harness.runtime.conf import conf_directory

RESULTS = conf_directory().parent / "results"
REFERENCE = RESULTS / "reference"
RECORDED = RESULTS / "gpu" / "2026-11-26"
"""The first figures of an H100."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the recorded folder."""
    copied = tmp_path / "gpu" / "h100"
    shutil.copytree(RECORDED, copied)
    return copied


def cells(text: str, name: str) -> list[str]:
    """The cells of the first row that begins with `name`."""
    (line, *_) = (line for line in text.split("\n") if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def change(folder: Path, **changed: object) -> GpuRecord:
    """The record of the folder with other entries in machine.json."""
    path = folder / MACHINE
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    return read_gpu_record(folder)


def test_the_committed_page_is_made_from_the_files_beside_it() -> None:
    assert RECORDED in gpu_folders(RESULTS)
    made = page(read_gpu_record(RECORDED), REFERENCE, "operations-print.svg")
    text = (RECORDED / "README.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == made


def test_an_operation_is_shown_with_its_floor_and_share(folder: Path) -> None:
    record = read_gpu_record(folder)
    found = record.time("dynamiq.decompress.mix", "float32")
    assert found is not None and found.floor_ms is not None and found.copy_bytes_per_s is not None
    assert found.floor_ms == pytest.approx(1e12 * found.bytes_per_coordinate / found.copy_bytes_per_s)
    assert found.share == pytest.approx(found.floor_ms / found.ms)
    text = page(record, REFERENCE)
    assert cells(text, "dynamiq.decompress.mix") == [
        *("dynamiq.decompress.mix", "1.37", "0.916", "0.671", "3.19", "1.95", "0.613"),
    ]
    assert text.index("| tfp.decode.12.plain |") < text.index("All other operations")
    assert text.index("| linear.quantize.8 |") > text.index("All other operations")
    assert cells(text, "copy, bfloat16") == ["copy, bfloat16", "2.98 TB/s"]


def test_other_code_stands_beside_our_operation(folder: Path) -> None:
    text = page(read_gpu_record(folder), REFERENCE)
    assert cells(text, "compress, 2 bits")[3:] == ["7.51", "dynamiq.compress.2", "1.45", "5.19"]
    assert cells(text, "int4_stochastic")[3:5] == ["11.5", "linear.quantize_stochastic.4"]


def test_printed_figures_are_those_of_the_card(folder: Path) -> None:
    assert "The papers print no time of a kernel on this card." in page(read_gpu_record(folder), REFERENCE)
    text = page(change(folder, device="NVIDIA A100-SXM4-40GB"), REFERENCE)
    assert "Beside what the authors print for this card" in text
    printed = cells(text, "quantize w/ Hadamard")
    assert printed[2:4] == ["689", "linear.quantize_hadamard.4"]
    assert "print no time" in page(change(folder, device="NVIDIA A1000"), REFERENCE)


def test_logs_and_training_runs_are_shown(folder: Path) -> None:
    (folder / "tests.log").write_text("..F\n=== 1 failed, 835 passed, 86 skipped in 50.1s ===\n")
    (folder / "memcheck.log").write_text("======== ERROR SUMMARY: 0 errors\nexit code 0\n")
    (folder / "train-bf16.json").write_text('{"metric": "perplexity", "final_metric": 99.5, "steps": 24}')
    text = page(read_gpu_record(folder), REFERENCE)
    assert cells(text, "tests/gpu")[1] == "1 failed, 835 passed, 86 skipped in 50.1s"
    assert cells(text, "compute-sanitizer memcheck")[1] == "exit code 0"
    assert "| bf16 | perplexity | 99.5 | 24 |" in text


def test_operations_that_failed_are_named(folder: Path) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"operation": "edgc.hist", "dtype": "float32", "error": "out of memory"}\n')
    assert "- not timed: edgc.hist, float32: out of memory" in page(read_gpu_record(folder), REFERENCE)


def test_a_folder_with_a_machine_alone_has_a_page(tmp_path: Path) -> None:
    shutil.copy(RECORDED / MACHINE, tmp_path)
    (readme,) = write_gpu_page(read_gpu_record(tmp_path), REFERENCE, tmp_path)
    assert readme.read_text().startswith("# What codecs cost on one NVIDIA H100 80GB HBM3\n")


def test_own_text_stays_and_the_plot_is_drawn(folder: Path) -> None:
    for plot in folder.glob("operations-*"):
        plot.unlink()
    before = (folder / "README.md").read_text()
    files = write_gpu_page(read_gpu_record(folder), REFERENCE, folder)
    assert {file.name for file in files} == {"README.md", "operations-print.svg"}
    assert all(file.stat().st_size for file in files)
    assert (folder / "README.md").read_text() == before


def test_the_plot_names_no_family_by_its_code_name() -> None:
    record = read_gpu_record(RECORDED)
    names = {family_name(each.family) for each in record.operations}
    assert {"DynamiQ plus", "Hadamard transform", "MXFP8, 6, 4", "float32"} <= names
    assert not [name for name in names if "_" in name] and len(names) == len(
        {each.family for each in record.operations}
    )


def test_a_readme_without_a_place_for_the_figures_is_refused(folder: Path) -> None:
    (folder / "README.md").write_text("# Mine\n")
    with pytest.raises(ValueError, match="has no lines <!-- measured by make gpu"):
        write_gpu_page(read_gpu_record(folder), REFERENCE, folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", "{]\n"), (MACHINE, "{}"), ("rows.jsonl", '{"operation": 3}\n'), ("counters.csv", '"a')],
)
def test_damaged_files_are_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(UnusableFileError, match=name):
        read_gpu_record(folder)
