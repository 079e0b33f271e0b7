"""`sweep.json` and its tables: written from cells' records, read back with all checks."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradwire.harness.files.compressed import compressed
from gradwire.harness.report.claims.claim import Claim
from gradwire.harness.report.claims.effects import below
from gradwire.harness.report.kept_rows import ROWS, KeptRow, rows_text
from gradwire.harness.report.sweep_record import (
    FILE,
    OWN_DIGEST,
    VALUES,
    _digest,
    check_off_axes,
    find_sweep_records,
    read_sweep_record,
    save_sweep_record,
)
from gradwire.harness.sweeps import record
from gradwire.harness.sweeps.record import SweptCell, SweptCells, without_folders, write_sweep_record

AXES = ("codec", "codec.bits")


def unpacked(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def put(path: Path, text: str) -> None:
    path.write_bytes(compressed(text) if path.suffix == ".gz" else text.encode())


def swept(folder: Path, **changes: object) -> SweptCell:
    """The cell whose run `runs.write` has written, as a plan has it."""
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"task": {"name": "train"}} | changes
    return SweptCell(f"codec={config['codec']['name']} seed={config['seed']}", folder, config)


def written(output: Path, cells: list[SweptCell], axes: tuple[str, ...] = AXES) -> Path:
    swept = SweptCells(
        *("made_up", "tiny", "run.py sweeps=made_up", axes, cells, "made_up-tiny"),
        paper="A Paper Table 1",
        text="embedded",
    )
    write_sweep_record(output, swept)
    return output


@pytest.fixture
def cells(runs) -> list[SweptCell]:  # type: ignore[no-untyped-def]
    return [swept(runs.write(codec, seed=seed)) for codec in ("bf16", "dynamiq") for seed in (0, 1)]


def test_the_record_holds_all_cells_and_their_figures(cells: list[SweptCell], tmp_path: Path) -> None:
    record = read_sweep_record(written(tmp_path / "out", cells))
    assert record.complete and record.seeds == [0, 1] and record.left_out == []
    assert [cell.axes for cell in record.cells][1:3] == [
        {"codec": "bf16", "codec.bits": None},
        {"codec": "dynamiq", "codec.bits": 5},
    ]
    first = record.cells[0]
    assert (first.run, first.kind, first.code_hash, first.commit) == (
        "bf16-seed0",
        "emulated",
        "0123abcd",
        "89abcdef",
    )
    summary = json.loads((cells[0].directory / "summary.json").read_text())
    rows = [json.loads(line) for line in (cells[0].directory / "evals.jsonl").read_text().splitlines()]
    own = [value for value in record.values if value.run == first.label]
    whole = {value.metric: value.value for value in own if not value.case and value.step is None}
    assert whole["final_metric"] == summary["final_metric"]
    assert whole["vnmse"] == summary["vnmse_mean"]
    assert [value.value for value in own if value.metric == "perplexity"] == [
        row["perplexity"] for row in rows
    ]
    assert set(record.frame().run) == {cell.label for cell in record.cells}


def test_equal_records_give_equal_bytes(cells: list[SweptCell], tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", cells), written(tmp_path / "b", cells)
    for name in (FILE, VALUES, ROWS):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    record = read_sweep_record(first)
    save_sweep_record(tmp_path / "c", record)
    assert read_sweep_record(tmp_path / "c") == record
    assert find_sweep_records(tmp_path) == [tmp_path / "a", tmp_path / "b", tmp_path / "c"]


def test_a_cell_without_figures_is_in_it_with_the_reason(runs, cells, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    diverged = swept(runs.fail(runs.write("mxfp4"), "diverged at step 3: the loss is nan"))
    damaged = swept(runs.write("thc"))
    (damaged.directory / "summary.json").write_text("{")
    missing = SweptCell("codec=mxfp8 seed=0", tmp_path / "none", cells[0].config)
    record = read_sweep_record(written(tmp_path / "out", [*cells, diverged, damaged, missing]))
    assert not record.complete
    found = {cell.label: cell for cell in record.cells}
    assert found["codec=mxfp4 seed=0"].diverged
    assert found["codec=thc seed=0"].status == "damaged"
    assert found["codec=mxfp8 seed=0"].status == "unfinished"
    assert [line.partition(":")[0] for line in record.left_out] == [
        "codec=mxfp4 seed=0",
        "codec=thc seed=0",
        "codec=mxfp8 seed=0",
    ]
    assert {value.run for value in record.values} == {cell.label for cell in record.cells if cell.done}


def test_cells_that_differ_off_the_axes_are_named(runs, cells, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    check_off_axes(read_sweep_record(written(tmp_path / "good", cells)))
    other = swept(runs.write("dynamiq", seed=2, train={"steps": 200, "lr": 5e-3}))
    record = read_sweep_record(written(tmp_path / "out", [*cells, other]))
    with pytest.raises(
        ValueError, match=r"differ in train.lr, which is not an axis .*0.005 in codec=dynamiq seed=2"
    ):
        check_off_axes(record)
    runs.change_summary(cells[0].directory, machine={"processor": "8 cores", "gpus": []})
    with pytest.raises(ValueError, match="differ in machine.processor"):
        check_off_axes(read_sweep_record(written(tmp_path / "machines", cells)))


def test_it_names_no_folder_of_this_machine(cells: list[SweptCell], tmp_path: Path) -> None:
    config = cells[0].config | {"gradients": "/home/me/runs/a.npz"}
    cell = SweptCell(
        "gradients=/home/me/runs/a.npz", cells[0].directory, {**config, "task": {"name": "train"}}
    )
    output = written(tmp_path / "out", [cell], axes=("gradients",))
    assert read_sweep_record(output).cells[0].axes == {"gradients": "…/a.npz"}
    assert "/home" not in (output / FILE).read_text() and str(tmp_path) not in (output / FILE).read_text()
    assert without_folders("python run.py sweep.data=/a/b size=small x=[~/c/d,e/f]") == (
        "python run.py sweep.data=…/b size=small x=[…/d,e/f]"
    )


def test_what_is_taken_from_another_cell_has_its_words(cells: list[SweptCell], tmp_path: Path) -> None:
    changed = {"gradients": "/home/me/a.npz", "task": {"name": "train"}}
    taking = [
        SweptCell(
            cell.label,
            cell.directory,
            {**cell.config, **changed},
            {"gradients": "warm:step2", "model": "gpt2"},
        )
        for cell in cells
    ]
    record = read_sweep_record(written(tmp_path / "axis", taking, axes=(*AXES, "gradients")))
    assert {cell.axes["gradients"] for cell in record.cells} == {"warm:step2"}
    shared = read_sweep_record(written(tmp_path / "shared", taking))
    first = shared.cells[0]
    assert (shared.setting(first, "gradients"), shared.setting(first, "model")) == ("warm:step2", "gpt2")


def test_a_damaged_record_is_named(cells: list[SweptCell], tmp_path: Path) -> None:
    output = written(tmp_path / "out", cells)
    sound = {FILE: (output / FILE).read_text(), VALUES: unpacked(output / VALUES)}
    content = json.loads(sound[FILE])
    damages = {
        f"{VALUES}: differs from its digest": (
            VALUES,
            sound[VALUES].replace("perplexity,3", "perplexity,2", 1),
        ),
        f"{FILE}: is not JSON": (FILE, sound[FILE][:-20]),
        f"{FILE}: lacks cells": (FILE, json.dumps({**content, "cells": None} | {}).replace('"cells"', '"x"')),
        f"{FILE}: cells is": (FILE, json.dumps(content | {"cells": 3})),
        f"{FILE}: lacks folder": (
            FILE,
            json.dumps({key: value for key, value in content.items() if key != "folder"}),
        ),
    }
    for problem, (name, text) in damages.items():
        put(output / name, text)
        with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
            read_sweep_record(output)
        put(output / name, sound[name])
    for key in ("name", "size"):
        own = {**content, key: "../../x"}
        (output / FILE).write_text(json.dumps(own | {OWN_DIGEST: _digest(own)}))
        with pytest.raises(ValueError, match=f"has {key}=../../x, which is not a name"):
            read_sweep_record(output)
    own = json.loads(sound[FILE])
    own["cells"][0]["wall_time_s"] = 0.5
    (output / FILE).write_text(json.dumps(own | {OWN_DIGEST: _digest(own)}))
    assert read_sweep_record(output).cells[0].wall_time_s == 0.5
    (output / FILE).write_text(sound[FILE])
    record = read_sweep_record(output)
    for wrong in ({"run": "none"}, {"kind": "guessed"}, {"metric": ""}):
        values = (record.values[0]._replace(**wrong),)  # type: ignore[arg-type]
        save_sweep_record(tmp_path / "wrong", replace(record, values=values))
        with pytest.raises(ValueError, match="values.csv.gz: line 2 is not a figure"):
            read_sweep_record(tmp_path / "wrong")


def test_a_field_that_is_too_long_is_named(cells: list[SweptCell], tmp_path: Path) -> None:
    record = read_sweep_record(written(tmp_path / "out", cells))
    long = (record.values[0]._replace(case="x" * 200_000),)
    save_sweep_record(tmp_path / "long", replace(record, values=long))
    with pytest.raises(ValueError, match="values.csv.gz: is not a table .field larger than field limit"):
        read_sweep_record(tmp_path / "long")


def swap(content: dict[str, Any]) -> None:
    first, *_, last = content["cells"]
    first["axes"], last["axes"] = last["axes"], first["axes"]


@pytest.mark.parametrize(
    "edit",
    [
        swap,
        lambda content: content["cells"][0].update(kind="modelled"),
        lambda content: content["cells"][0].update(code_hash="other"),
        lambda content: content["settings"]["train"].update({"model.name": "other"}),
        lambda content: content.update(size="paper"),
        lambda content: content.update(note="more"),
        lambda content: content.pop(OWN_DIGEST),
    ],
)
def test_an_edited_record_differs_from_its_digest(
    edit: Callable[[dict[str, Any]], object], cells: list[SweptCell], tmp_path: Path
) -> None:
    output = written(tmp_path / "out", cells)
    content = json.loads((output / FILE).read_text())
    (output / FILE).write_text(json.dumps(dict(reversed(content.items()))))  # means the same
    read_sweep_record(output)
    edit(content)
    (output / FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{FILE}: differs from its own digest, .*; run the sweep again"):
        read_sweep_record(output)


def test_figures_that_are_not_finite_come_back(cells: list[SweptCell], tmp_path: Path) -> None:
    record = read_sweep_record(written(tmp_path / "out", cells))
    odd = tuple(record.values[0]._replace(value=value) for value in (math.inf, -math.inf, 1e-300, 0.1 + 0.2))
    save_sweep_record(tmp_path / "odd", replace(record, values=odd))
    assert read_sweep_record(tmp_path / "odd").values == odd


def test_a_record_keeps_the_claims_that_stood_when_its_first_cells_ran(
    cells: list[SweptCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def standing(*claims: Claim) -> None:
        monkeypatch.setattr(record, "claims_on", lambda sweep: list(claims))

    def held(output: Path) -> set[str]:
        return set(read_sweep_record(output).claims)

    first, later = (
        Claim(name, "P", "T", name, sweeps=("made_up",), holds=lambda e: below(e.vnmse(), 1.0))
        for name in ("P1", "P2")
    )
    standing(first)
    output = written(tmp_path / "out", cells[:2])
    assert read_sweep_record(output).claims == {"P1": first.digest}
    standing(first, later)
    assert held(written(output, cells)) == {"P1"}, "more cells do not make a claim older"
    standing(replace(first, says="otherwise"), later)
    assert held(written(output, cells)) == set(), "nor is one that was changed the old one"
    assert held(written(tmp_path / "anew", cells)) == {"P1", "P2"}


def test_a_record_whose_values_are_not_compressed_is_read(cells: list[SweptCell], tmp_path: Path) -> None:
    output = written(tmp_path / "out", cells)
    record = read_sweep_record(output)
    (output / "values.csv").write_text(unpacked(output / VALUES))
    (output / VALUES).unlink()
    assert read_sweep_record(output) == record
    assert save_sweep_record(output, record) == [output / VALUES, output / ROWS, output / FILE]
    assert not (output / "values.csv").exists(), "there is one form of it"


def test_rows_and_decisions_are_kept_and_read_back(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cell = swept(runs.write("dynamiq", steps=20))
    header = json.dumps({"steps": 20, "settings": {}})
    decided = [json.dumps({"step": step, "mu": [4.0, 4.0 + step // 10], "k": 2}) for step in range(1, 21)]
    (cell.directory / "decisions.jsonl").write_text("\n".join([header, *decided]) + "\n")
    output = written(tmp_path / "out", [cell])
    record = read_sweep_record(output)
    rows = [json.loads(line) for line in (cell.directory / "steps.jsonl").read_text().splitlines()]
    assert record.steps_of(cell.label, "loss") == pytest.approx({row["step"]: row["loss"] for row in rows})
    assert record.steps_of(cell.label, "decision/mu/1") == {step: 4.0 + step // 10 for step in range(1, 21)}
    assert record.steps_of(cell.label, "no such figure") == {}
    (series,) = [each for each in record.rows if each.figure == "decision/mu/1"]
    assert series.steps == (1, 10, 20), "a decision that stays takes no place"
    frame = record.rows_frame()
    assert set(frame.run) == {cell.label} and (frame[frame.metric == "decision/k"].value == 2).all()
    assert not set(frame.metric) & {"compute_s", "cpu_busy", "measured"} and "train_time_s" in set(
        frame.metric
    )


ROW = {"cell": "codec=bf16 seed=0", "figure": "loss", "steps": [0, 3], "values": [1.5, None], "last": 4}


def test_a_row_holds_until_the_next_change() -> None:
    found = {0: 1.5, 1: 1.5, 2: 1.5, 5: math.inf}
    series = KeptRow.of("a", "loss", found)
    assert (series.steps, series.values, series.last) == ((0, 3, 5), (1.5, None, math.inf), 5)
    assert series.by_step() == found
    assert [series.at(step) for step in (-1, 2, 4, 5, 6)] == [None, 1.5, None, math.inf, None]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        json.dumps({**ROW, "cell": "another"}),
        json.dumps({**ROW, "figure": 3}),
        json.dumps({**ROW, "steps": [3, 0]}),
        json.dumps({**ROW, "steps": [0, 3, 4]}),
        json.dumps({**ROW, "steps": [0.5, 3]}),
        json.dumps({**ROW, "values": ["1", 2]}),
        json.dumps({**ROW, "last": 2}),
        json.dumps({**ROW, "last": 2**60}),
        json.dumps({**ROW, "steps": [0, 2**60], "last": 2**60}),
        json.dumps({**ROW, "steps": [-(2**60), 3]}),
        json.dumps({**ROW, "values": [1, 10**400]}),
        json.dumps({key: value for key, value in ROW.items() if key != "last"}),
    ],
)
def test_a_damaged_row_is_refused(line: str, cells: list[SweptCell], tmp_path: Path) -> None:
    output = written(tmp_path / "out", cells)
    text = unpacked(output / ROWS)
    put(output / ROWS, text.replace("loss", "lost", 1))
    with pytest.raises(ValueError, match="rows.jsonl.gz: differs from its digest in sweep.json"):
        read_sweep_record(output)
    put(output / ROWS, f"{line}\n")
    content = json.loads((output / FILE).read_text())
    content["rows_sha256"] = hashlib.sha256(f"{line}\n".encode()).hexdigest()
    (output / FILE).write_text(json.dumps(content | {OWN_DIGEST: _digest(content)}))
    with pytest.raises(ValueError, match="rows.jsonl.gz: line 1 is not a row"):
        read_sweep_record(output)
    (output / ROWS).unlink()
    with pytest.raises(ValueError, match="rows.jsonl.gz: is not there"):
        read_sweep_record(output)


def test_a_sound_row_is_read(cells: list[SweptCell], tmp_path: Path) -> None:
    record = read_sweep_record(written(tmp_path / "out", cells))
    made = KeptRow(str(ROW["cell"]), "loss", (0, 3), (1.5, None), 4)
    save_sweep_record(tmp_path / "one", replace(record, rows=(made,)))
    assert json.loads(rows_text([made])) == ROW
    assert read_sweep_record(tmp_path / "one").rows == (made,)
    save_sweep_record(tmp_path / "one", replace(record, rows=()))
    assert read_sweep_record(tmp_path / "one").rows == () and not (tmp_path / "one" / ROWS).exists()
