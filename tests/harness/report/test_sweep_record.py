"""`sweep.json` and `values.csv`: written from cells' records, read back with all checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradwire.harness.report.claims.claim import Claim
from gradwire.harness.report.claims.effects import below
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
    for name in (FILE, VALUES):
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
    sound = {name: (output / name).read_text() for name in (FILE, VALUES)}
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
        (output / name).write_text(text)
        with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
            read_sweep_record(output)
        (output / name).write_text(sound[name])
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
        with pytest.raises(ValueError, match="values.csv: line 2 is not a figure"):
            read_sweep_record(tmp_path / "wrong")


def test_a_field_that_is_too_long_is_named(cells: list[SweptCell], tmp_path: Path) -> None:
    record = read_sweep_record(written(tmp_path / "out", cells))
    long = (record.values[0]._replace(case="x" * 200_000),)
    save_sweep_record(tmp_path / "long", replace(record, values=long))
    with pytest.raises(ValueError, match="values.csv: is not a table .field larger than field limit"):
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
