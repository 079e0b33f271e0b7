"""Makes `counters.csv` of Nsight Compute's report, and `train-<codec>.json` of a run.

python tests/gpu/summarize.py counters <ncu's csv> <counters.csv>
python tests/gpu/summarize.py training <run directory> <train-codec.json>
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

COLUMNS = {
    "gpu__time_duration.sum": "ns",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps_percent",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "shared_bank_conflicts",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "grid",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio": "sectors_per_store",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": "sectors_per_load",
}
"""Metrics of Nsight Compute, and their columns."""

NAME_LENGTH = 60

FIGURES = (
    "metric",
    "final_metric",
    "steps",
    "workers",
    "wire_bits_per_coordinate",
    "vnmse_mean",
    "compute_s",
    "compression_s",
    "exposed_comm_s",
    "train_time_s",
    "wall_time_s",
)
"""The figures kept of a run's summary; `compute_s` to `exposed_comm_s` are means of a step."""


def counters(report: Path, output: Path) -> None:
    """One line for each kernel: the last launch, whose caches are warm. `report` is in base units."""
    lines = [line for line in report.read_text().splitlines() if line.startswith('"')]
    kernels = dict[str, dict[str, str]]()
    launches = dict[str, str]()
    for row in csv.DictReader(lines):
        name = row["Kernel Name"].removeprefix("void ")[:NAME_LENGTH]
        if launches.setdefault(name, row["ID"]) != row["ID"]:
            launches[name], kernels[name] = row["ID"], {}
        column = COLUMNS.get(row["Metric Name"])
        if column is not None:
            kernels.setdefault(name, {})[column] = row["Metric Value"].replace(",", "")
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["kernel", *COLUMNS.values()])
        writer.writeheader()
        writer.writerows({"kernel": name, **found} for name, found in kernels.items())


def training(run: Path, output: Path) -> None:
    """The figures of a finished run; raises FileNotFoundError for one that has not finished."""
    summary = json.loads((run / "summary.json").read_text())
    output.write_text(json.dumps({key: summary[key] for key in FIGURES}, indent=2) + "\n")


def main(arguments: list[str]) -> None:
    """Do what `arguments` say."""
    what, source, output = arguments
    {"counters": counters, "training": training}[what](Path(source), Path(output))


if __name__ == "__main__":
    main(sys.argv[1:])
