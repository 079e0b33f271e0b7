"""`task=score` from the command line: what it refuses, what it shows, sweeps, repeated calls."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import DOCUMENTS, Records, write_files
from random_checkpoints import save_random
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.launch.launch import run_here
from gradwire.harness.record.identity import run_id
from gradwire.harness.report.frame import load_results
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.score.checkpoint import find_checkpoint
from gradwire.harness.studies.score.study import STUDY as SCORE

Score = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of GPT-2 with DynamiQ."""
    run = tmp_path_factory.mktemp("trained") / "the-run"
    short = ("codec=dynamiq", "cluster=virtual", "cluster.workers=2", "train.steps=1", "eval.max_sequences=4")
    run_here(validate(compose([*TINY_MODEL, "model=gpt2", *short])), run)
    return run


def config_of(checkpoint: Path, *overrides: str) -> Any:
    return validate_any(compose(["task=score", f"checkpoint={checkpoint}", *overrides]))


def test_unusable_checkpoints_are_refused(
    checkpoint: Path, data: Path, trained: Path, tmp_path: Path
) -> None:
    def copied(name: str, source: Path, *without: str) -> Path:
        shutil.copytree(source, tmp_path / name, symlinks=True)
        for each in without:
            (tmp_path / name / each).unlink()
        return tmp_path / name

    unfinished = copied("unfinished", trained, "DONE")
    lost = copied("lost", trained)
    shutil.rmtree(lost / "checkpoint")
    pickled = copied("pickled", checkpoint, "model.safetensors")
    (pickled / "pytorch_model.bin").write_bytes(b"never read")
    other = copied("other", checkpoint)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"architectures": ["T5Model"]}))
    headless = copied("headless", checkpoint)
    (headless / "config.json").write_text(json.dumps(config | {"n_head": 0}))
    replay = copied("replay", trained)
    (replay / "config.yaml").write_text("task: {name: replay}\n")
    linked = copied("linked", trained)
    (linked / "checkpoint" / "config.json").unlink()
    (linked / "checkpoint" / "config.json").symlink_to(checkpoint / "config.json")
    damaged = copied("damaged", trained)
    (damaged / "summary.json").write_text("{}")
    refused = {
        replay: "is the directory of task=replay",
        linked: "is a link, and none is followed out of a run directory",
        damaged: "differs from its digest in DONE",
        tmp_path / "nowhere": "no such folder",
        Path(
            "nobody/has-this"
        ): "no such folder, and config.json is not in the Hugging Face cache and HF_HUB",
        unfinished: "run the same command again to finish it",
        lost: "has no checkpoint/ with weights",
        pickled: "has none of the weights model.safetensors, model.safetensors.index.json",
        copied("speechless", checkpoint, "tokenizer.json"): "has no tokenizer.json",
        copied("unknown", checkpoint, "config.json"): "has no config.json",
        other: "its architecture is T5Model",
        headless: "config.json: has n_head=0; allowed are whole numbers from 1 to 16384",
    }
    for asked, reason in refused.items():
        with pytest.raises(ConfigError) as error:
            config_of(asked, f"score.data={data}")
        assert str(error.value).startswith("checkpoint=")
        assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings", [{"activation_function": "x"}, {"n_embd": 33}, {"layer_norm_epsilon": "x"}, {"n_inner": 48}]
)
def test_what_transformers_makes_of_settings_is_one_line(
    settings: dict[str, Any], checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(UnusableFileError, match="has weights that cannot be loaded") as refused:
        find_checkpoint(str(folder)).model()
    assert str(refused.value).isprintable() and len(str(refused.value)) < 700


def test_a_tokenizer_that_is_none_is_refused_in_one_line(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").write_text('{"model": 5}')
    with pytest.raises(UnusableFileError, match="has a tokenizer that cannot be loaded"):
        find_checkpoint(str(folder)).tokenizer()


def test_unusable_requests_are_refused(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    masked = save_random(tmp_path / "bert", "masked")
    here = f"score.data={data}"
    (tmp_path / "arc_easy").mkdir()
    refused = {
        (checkpoint, "tasks=[arc_esy]", here): r"tasks=\[arc_esy\]: no such task.*did you mean arc_easy",
        (checkpoint, "tasks=[]", here): "tasks=.*at least one text",
        (checkpoint, "tasks=[piqa,piqa]", here): "tasks=",
        (checkpoint, "tasks=piqa", here): "tasks=piqa: choose a list",
        (
            checkpoint,
            "tasks=[piqa]",
        ): r"tasks=\[piqa\] \(baber/piqa\): not in the Hugging Face cache and HF_HUB",
        (checkpoint, "score.limit=0", here): "score.limit=0: choose a whole number from 1",
        (checkpoint, "score.batch=0", here): "score.batch=0",
        (checkpoint, "score.device=tpu", here): "score.device=tpu",
        (checkpoint, "score.digest=abc", here): "score.digest=abc: set automatically",
        (checkpoint, f"score.data={tmp_path / 'no'}"): "score.data=.*no such folder",
        (
            checkpoint,
            "tasks=[arc_easy]",
            f"score.data={tmp_path}",
        ): 'needs arc_easy/test.jsonl or.*lines like {"id"',
        (masked, "tasks=[hellaswag]", here): "is a masked model: it restores hidden tokens",
    }
    for (asked, *overrides), reason in refused.items():
        with pytest.raises(ConfigError, match=reason) as error:
            config_of(asked, *overrides)
        assert "\n" not in str(error.value)


def test_the_id_follows_from_bytes_not_places(
    checkpoint: Path, trained: Path, data: Path, tmp_path: Path
) -> None:
    def name(checkpoint: Path, data: Path, *overrides: str, tasks: str = "[piqa,arc_easy]") -> str:
        return run_id(config_of(checkpoint, f"tasks={tasks}", f"score.data={data}", *overrides))

    usual = name(checkpoint, data)
    shutil.copytree(checkpoint, tmp_path / "weights")
    shutil.copytree(data, tmp_path / "data")
    assert usual == name(tmp_path / "weights", tmp_path / "data", tasks="[arc_easy,piqa]")
    (tmp_path / "data" / "mmlu" / "README").write_text("not read")
    assert usual == name(checkpoint, tmp_path / "data")
    assert usual != name(checkpoint, data, "score.limit=5")
    labels = tmp_path / "data" / "piqa" / "valid-labels.lst"
    labels.write_text("".join("10"[int(line)] + "\n" for line in labels.read_text().split()))
    assert usual != name(checkpoint, tmp_path / "data")
    assert run_name(config_of(checkpoint, f"score.data={data}")).startswith("score-small-")
    assert run_name(config_of(trained / "checkpoint", f"score.data={data}")).startswith("score-the-run-")


def test_scores_are_shown_recorded_and_not_repeated(
    scored: Score, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (f"checkpoint={trained}", "tasks=[winogrande,arc_easy,mmlu]", "score.limit=6", "seed=3")
    found = scored(*asked)
    printed = capsys.readouterr().out
    easy = found["tasks"]["arc_easy"]
    assert (easy["documents"], easy["available"], easy["requests"]) == (6, DOCUMENTS, easy["requests"])
    assert found["tasks"]["mmlu"]["documents"] == 57, "a document of each subject: 6 / 57, rounded up"
    assert list(found["tasks"]) == ["arc_easy", "winogrande", "mmlu"], "in the table's order"
    value = easy["metrics"]["acc"]
    assert f"{100 * value['value']:.2f} ± {100 * value['stderr']:.2f}" in printed
    assert "ARC_easy" in printed and "gpt2, dynamiq" in printed and "6 of 12 documents" in printed
    assert found["checkpoint"] == "the-run"
    assert found["trained"]["codec"]["name"] == "dynamiq"
    assert found["architecture"] == "GPT2LMHeadModel"
    assert {"lm-eval", "torch", "transformers"} <= set(found["versions"])
    lines = load_results(tmp_path / "out").set_index(["case", "metric"])
    assert lines.loc[("arc_easy", "acc"), "value"] == value["value"]
    assert lines.loc[("arc_easy", "acc_stderr"), "value"] == value["stderr"]
    assert lines.loc[("mmlu", "documents"), "value"] == 57
    assert set(lines.seed) == {3} and set(lines.task) == {"score"} and set(lines.kind) == {"measured"}
    before = (tmp_path / "out" / "scores.json").stat().st_mtime_ns
    assert scored(*asked) == found
    again = capsys.readouterr().out
    assert "already finished" in again and printed.partition("\n")[2] in again
    assert (tmp_path / "out" / "scores.json").stat().st_mtime_ns == before
    (tmp_path / "out" / "scores.json").write_text("{}")
    with pytest.raises(ValueError, match=r"scores\.json: differs from its digest"):
        scored(*asked)


def test_documents_of_the_hub_are_scored_alike(
    scored: Score, records: dict[str, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data sets that the stock tasks name are fetched from the hub, and only the split that is scored is
    needed."""
    import datasets
    from datasets.table import InMemoryTable

    asked = []

    def fetched(path: str, name: str | None) -> dict[str, Any]:
        asked.append((path, name))
        task = {"allenai/ai2_arc": "arc_easy", "baber/piqa": "piqa"}[path]
        table = InMemoryTable.from_pylist(records[task])
        scored = "test" if name else "validation"
        return {scored: datasets.Dataset(table, fingerprint=task), "train": "never looked at"}

    monkeypatch.setattr("gradwire.harness.studies.score.choose.repository_available", lambda hub: None)
    monkeypatch.setattr(datasets, "load_dataset", fetched)
    tasks = "tasks=[arc_easy,piqa]"
    found = scored(tasks, "score.data=null", "score.limit=7", folder="hub")["tasks"]
    local = scored(tasks, "score.limit=7", folder="local")["tasks"]
    assert asked == [("allenai/ai2_arc", "ARC-Easy"), ("baber/piqa", None)]
    assert (found["piqa"]["source"], local["piqa"]["source"]) == ("baber/piqa", "piqa")
    for task in (*found.values(), *local.values()):
        del task["source"], task["data"]
    assert found == local
    assert found["piqa"]["documents"] == 7
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: {}["hub"])
    with pytest.raises(ValueError, match="allenai/ai2_arc cannot be read"):
        scored(tasks, "score.data=null", "score.limit=6", folder="gone")


def test_a_sweep_makes_the_table(
    scored: Score, checkpoint: Path, trained: Path, records: dict[str, Records], tmp_path: Path
) -> None:
    only = "tasks=[piqa,winogrande]"
    one = scored(f"checkpoint={checkpoint}", only, folder="one")["tasks"]
    other = scored(f"checkpoint={trained}", "tasks=[piqa]", folder="other")["tasks"]
    (tmp_path / "unfinished").mkdir()
    folders = [tmp_path / name for name in ("one", "other", "unfinished")]
    page = SCORE.compare(folders, tmp_path / "table", ["checkpoint"])
    (table, by_length) = page.tables
    assert table.header == ["checkpoint", "PIQA", "WinoGrande"]
    assert [row[0] for row in table.rows] == ["small", "gpt2, dynamiq"]
    assert table.rows[1][2] == "–"
    value = one["winogrande"]["metrics"]["acc"]
    assert table.rows[0][2] == f"{100 * value['value']:.2f} ± {100 * value['stderr']:.2f}"
    assert by_length.header == ["checkpoint", "PIQA"]
    assert "unfinished: not finished, left out" in page.remarks
    with (tmp_path / "table" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["checkpoint"], row["task"], row["metric"]) for row in rows] == [
        *(("small", "piqa", "acc"), ("small", "piqa", "acc_norm"), ("small", "winogrande", "acc")),
        *(("gpt2, dynamiq", "piqa", "acc"), ("gpt2, dynamiq", "piqa", "acc_norm")),
    ]
    assert float(rows[3]["value"]) == other["piqa"]["metrics"]["acc"]["value"]
    assert json.loads((tmp_path / "table" / "table.json").read_text())["left_out"]
    shutil.copytree(folders[1], tmp_path / "damaged")
    (tmp_path / "damaged" / "scores.json").write_text("{}")
    page = SCORE.compare([*folders, tmp_path / "damaged"], tmp_path / "table", ["checkpoint"])
    assert page.tables == [table, by_length]
    assert any("damaged: left out" in line and "differs from its digest" in line for line in page.remarks)
    with pytest.raises(ValueError, match="nothing to compare, no run is done: damaged"):
        SCORE.compare([tmp_path / "damaged"], tmp_path / "none", [])
    fewer = tmp_path / "fewer"
    write_files(fewer, {name: records[name][1:] for name in ("piqa", "winogrande")})
    scored(f"checkpoint={checkpoint}", only, f"score.data={fewer}", folder="elsewhere")
    page = SCORE.compare([folders[0], tmp_path / "elsewhere"], tmp_path / "both", [])
    assert "piqa: the rows are of different data, or of different versions of the task." in page.remarks
    twice = SCORE.compare([folders[0], folders[0]], tmp_path / "twice", []).tables[0]
    assert [row[0] for row in twice.rows] == ["small (small)", "small (small)"]
