"""MMLU's questions, from the files of its archive and from records of the hub."""

import json
from pathlib import Path

import pytest
from repositories import write_parquet

from gradwire.harness.data.examples import Question
from gradwire.harness.data.mmlu import question_of, read_questions, split_files
from gradwire.harness.data.records import UnreadableFileError

ROWS = '"What is ""x"", if x = 1?",1,2,3,4,A\n"Which, of these?",red,"a, b",NA,None,C\n'
FIRST = Question('What is "x", if x = 1?', ("1", "2", "3", "4"), 0, "algebra")


def test_the_archives_files_have_no_header(tmp_path: Path) -> None:
    file = tmp_path / "algebra_val.csv"
    file.write_text(ROWS)
    second = Question("Which, of these?", ("red", "a, b", "NA", "None"), 2, "algebra")
    assert list(read_questions(file)) == [FIRST, second]
    file.write_text("question,A,B,C,D,answer\n" + ROWS)
    assert list(read_questions(file)) == [FIRST, second]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json"])
def test_records_of_the_hub_are_the_same_questions(suffix: str, tmp_path: Path) -> None:
    record = {"question": FIRST.question, "subject": "algebra", "choices": [*FIRST.choices], "answer": 0}
    file = tmp_path / f"test-00000-of-00001.{suffix}"
    if suffix == "parquet":
        write_parquet(file, [record])
    else:
        file.write_text(json.dumps(record) + "\n")
    (found,) = read_questions(file)
    assert (found.question, found.choices, found.answer) == (FIRST.question, FIRST.choices, 0)
    assert question_of(record) == FIRST == question_of(record | {"answer": "A"})


def test_files_belong_to_the_split_that_their_folder_or_name_says(tmp_path: Path) -> None:
    names = [
        "val/algebra_val.csv",
        "val/virology_test_of_time_val.csv",
        "dev/algebra_dev.csv",
        "test/algebra_test.csv",
        "auxiliary_train/race.csv",
        "all/validation-00000-of-00001.parquet",
        "all/auxiliary_train-00000-of-00001.parquet",
        "README.md",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {split: split_files(tmp_path, split) for split in ("validation", "test", "auxiliary_train")}
    listed = {
        split: [file.relative_to(tmp_path).as_posix() for file in files] for split, files in found.items()
    }
    assert listed == {
        "validation": ["all/validation-00000-of-00001.parquet", *names[:2]],
        "test": ["test/algebra_test.csv"],
        "auxiliary_train": ["all/auxiliary_train-00000-of-00001.parquet", "auxiliary_train/race.csv"],
    }
    assert split_files(tmp_path, "train") == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("What?,1,2,3,4,E", "line 1 is not a question"),
        ("What?,1,A", "line 1 is not a question"),
        ("A line of text", "line 1 is not a question"),
    ],
)
def test_other_rows_are_refused(row: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a_test.csv").write_text(row + "\n")
    with pytest.raises(UnreadableFileError, match=reason):
        list(read_questions(tmp_path / "a_test.csv"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "Words"}, r"not a question \(wanted: question, choices, answer; found: text\)"),
        ({"question": "?", "choices": ["1", "2"], "answer": 2}, "2 choices and the answer 2"),
    ],
)
def test_other_records_are_refused(record: dict[str, object], reason: str) -> None:
    with pytest.raises(UnreadableFileError, match=reason):
        question_of(record)


def test_the_known_numbers_of_questions_are_found(real_data: Path) -> None:
    for split, number in {"dev": 285, "validation": 1529, "test": 14042}.items():
        files = split_files(real_data / "mmlu", split)
        questions = [question for file in files for question in read_questions(file)]
        assert (len(questions), len({question.subject for question in questions})) == (number, 57)
        assert {len(question.choices) for question in questions} == {4}
