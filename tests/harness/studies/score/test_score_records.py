"""The benchmarks' own files become the hub's records; what is missing or damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_files import Records, by_subject, hub_records, write_files

from gradwire.harness.studies.score.benchmarks import BENCHMARKS, SUBJECTS
from gradwire.harness.studies.score.records import arc, hellaswag, openbookqa


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "mmlu"])
def test_files_become_the_hubs_records(name: str, data: Path, records: dict[str, Records]) -> None:
    benchmark = BENCHMARKS[name]
    ((task, splits),) = benchmark.records(data)
    assert (task, splits) == (name, {benchmark.scored[name]: records[name]})


def test_mmlu_has_every_subject_with_its_examples(data: Path, records: dict[str, Records]) -> None:
    found = dict(BENCHMARKS["mmlu"].records(data))
    assert list(found) == [f"mmlu_{subject}" for subject in SUBJECTS]
    for subject, own in by_subject(records["mmlu"]).items():
        splits = found[f"mmlu_{subject}"]
        assert splits["test"] == own
        assert len(splits["dev"]) == 1
    assert set(BENCHMARKS["mmlu"].scored.values()) == {"test"}


def test_lm_eval_knows_these_benchmarks() -> None:
    """The stock files name the same subjects, splits and repositories."""
    from lm_eval.tasks._yaml_loader import load_yaml

    from gradwire.harness.studies.score.likelihood import STOCK

    for benchmark in BENCHMARKS.values():
        found = [load_yaml(path, resolve_func=False) for path in _tasks(STOCK / benchmark.stock)]
        files = {stock["task"]: stock for stock in found}
        assert set(benchmark.splits) <= set(files), benchmark.name
        for task, split in benchmark.scored.items():
            stock = files[task]
            assert stock["dataset_path"] == benchmark.hub
            assert split == (stock.get("test_split") or stock["validation_split"])


def _tasks(folder: Path) -> list[Path]:
    return [
        path for path in folder.glob("*.yaml") if not path.name.startswith("_") and "chat" not in path.name
    ]


def test_numbered_choices_may_have_a_letter_as_answer(tmp_path: Path) -> None:
    choices = [{"text": text, "label": label} for text, label in (("warm", "1"), ("cold", "2"))]
    for answer in ("B", "2"):
        line = {"id": "x", "question": {"stem": "Ice is", "choices": choices}, "answerKey": answer}
        (tmp_path / "arc.jsonl").write_text(json.dumps(line))
        assert [found["answerKey"] for found in arc(tmp_path / "arc.jsonl")] == ["2"]


def test_hellaswags_text_form_gives_the_stock_prompt_back(tmp_path: Path) -> None:
    """The unfinished last sentence begins with a capital letter, as the stock task writes it."""
    endings = ["a", "b", "c", "d"]
    contexts = {
        "Sumo: A film is shown. two men": ("A film is shown.", "two men"),
        'Hair: How to braid. Take "three" strands. Hold them!': (
            'How to braid. Take "three" strands. Hold them!',
            "",
        ),
        'Home: He says "stop." then he': ('He says "stop."', "then he"),
        "Chess: two players sit": ("", "two players sit"),
        "Roofs: It costs 2.50 each. she": ("It costs 2.50 each.", "she"),
    }
    lines = [line for context in contexts for line in (context, "2", *endings)]
    (tmp_path / "h.txt").write_text("\n".join(lines) + "\n")
    found = list(hellaswag(tmp_path / "h.txt"))
    assert [(each["ctx_a"], each["ctx_b"]) for each in found] == list(contexts.values())
    assert {each["label"] for each in found} == {"2"}
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(each | {"ind": 1}) + "\n" for each in found))
    assert list(hellaswag(tmp_path / "h.jsonl")) == found


def test_openbookqa_may_be_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "openbook_qa.jsonl"
    path.write_text(json.dumps({"query": "Fog is", "choices": ["wet", "dry"], "gold": 0}))
    (found,) = openbookqa(path)
    assert found["choices"] == {"text": ["wet", "dry"], "label": ["A", "B"]}
    assert (found["question_stem"], found["answerKey"]) == ("Fog is", "A")


DAMAGES = {
    "arc_easy": ("test.jsonl", '{"id": "1", "question": {"stem": "x"}, "answerKey": "A"}\n', "line 1 is not"),
    "arc_challenge": ("test.jsonl", '{"id": \n', "line 1 is not JSON"),
    "hellaswag": ("hellaswag_val_full.txt.bz2", "not compressed", "cannot be read"),
    "openbookqa": ("test.tsv", "ID\tStem\n1\tx\n", "line 2 is not a record"),
    "piqa": ("valid-labels.lst", "1\n", "another number of lines than valid.jsonl"),
    "winogrande": ("dev.jsonl", '{"sentence": "no blank", "answer": "1"}\n', "line 1 is not a record"),
    "mmlu": ("test/virology_test.csv", "What?,a,b,c\n", "line 1 is not a question"),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, {name: hub_records(name, 2)})
    file, content, problem = DAMAGES[name]
    (tmp_path / name / file).write_text(content)
    with pytest.raises(ValueError, match=problem) as error:
        list(BENCHMARKS[name].records(tmp_path))
    assert file in str(error.value) and "\n" not in str(error.value)
    (tmp_path / name / file).unlink()
    wanted = f"score.data={tmp_path}: tasks={name} needs {name}/{file.removesuffix('.bz2')}"
    with pytest.raises(ValueError, match="needs") as error:
        list(BENCHMARKS[name].records(tmp_path))
    assert str(error.value).startswith(wanted)
