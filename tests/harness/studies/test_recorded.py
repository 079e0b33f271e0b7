"""One recorded run of every study, read back: its lines of the frame, its table, CSV and JSON stay the same.

`python tests/harness/studies/test_recorded.py` writes `expected/` anew.
"""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from gradwire.harness.files.typed import made
from gradwire.harness.record.figures import study_module
from gradwire.harness.report.frame import load_results
from gradwire.harness.studies.bench.study import BenchRow
from gradwire.harness.studies.bench.views import text
from gradwire.harness.studies.overhead.study import OverheadRecord
from gradwire.harness.studies.overhead.task import table

RECORDED, EXPECTED = (Path(__file__).parent / name for name in ("recorded", "expected"))
COMPARED = ("allreduce", "predict", "replay", "score", "simulate", "statistics")
TASKS = ("bench", "overhead", *COMPARED)


def views(task: str, output: Path) -> dict[str, str]:
    """All that is made of the records of `task`, by file name; `output` is an empty folder."""
    folders = sorted(path for path in (RECORDED / task).iterdir())
    lines = load_results(*folders)
    lines["run"] = [Path(run).name for run in lines.run]
    names = ["run", "metric", "case", "kind", "seed", "step", "value"]
    found = {"frame.csv": lines.sort_values(names, kind="stable").to_csv(index=False)}
    if task in COMPARED:
        compare = importlib.import_module(study_module(task)).STUDY.compare
        found["page.txt"] = compare(folders, output, ()).text + "\n"
        found |= {name: (output / name).read_text() for name in ("table.md", "table.csv", "table.json")}
    elif task == "bench":
        content = json.loads((folders[0] / "bench.json").read_text())
        rows = [made(BenchRow, row, "bench.json", remedy="") for row in content["rows"]]
        found["page.txt"] = text(rows, 8) + "\n"
    else:
        found["page.txt"] = table(OverheadRecord.read(folders[0] / OverheadRecord.file)) + "\n"
    return found


@pytest.mark.parametrize("task", TASKS)
def test_records_are_shown_as_before(task: str, tmp_path: Path) -> None:
    found = views(task, tmp_path)
    assert {path.name for path in (EXPECTED / task).iterdir()} == found.keys()
    for name, content in found.items():
        assert content == (EXPECTED / task / name).read_bytes().decode(), name


if __name__ == "__main__":
    for each in TASKS:
        shutil.rmtree(EXPECTED / each, ignore_errors=True)
        (EXPECTED / each).mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in views(each, Path(folder)).items():
                (EXPECTED / each / name).write_bytes(content.encode())
