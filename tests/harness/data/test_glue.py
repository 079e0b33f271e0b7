"""GLUE's tasks, from the files of its archive and from records of the hub."""

from pathlib import Path

import pytest
from repositories import write_parquet

from gradwire.harness.data.examples import LabelledText
from gradwire.harness.data.glue import TASKS, read_texts, split_files, text_of
from gradwire.harness.data.records import UnreadableFileError

FILES = {
    "sst2": 'sentence\tlabel\na "charming journey . \t1\nbleak\t0\n',
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n"
        "7\tIt rained.\tIt was wet.\tentailment\n8\tA\tB\tnot_entailment\n"
    ),
    "cola": "gj04\t1\t\tHe left.\ngj04\t0\t*\tLeft he it.\n",
}
EXAMPLES = {
    "sst2": [LabelledText('a "charming journey .', None, 1), LabelledText("bleak", None, 0)],
    "rte": [LabelledText("It rained.", "It was wet.", 0), LabelledText("A", "B", 1)],
    "cola": [LabelledText("He left.", None, 1), LabelledText("Left he it.", None, 0)],
}


@pytest.mark.parametrize("name", TASKS)
def test_files_and_records_are_the_same_examples(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    (tmp_path / task.folder).mkdir()
    for split in ("train", "dev", "val"):
        (tmp_path / task.folder / f"{split}.tsv").write_text(FILES[name])
    records = [
        dict(zip(task.fields, (example.first, example.second), strict=False))
        | {"label": example.label, "idx": 0}
        for example in EXAMPLES[name]
    ]
    write_parquet(tmp_path / "hub" / name / "train-00000-of-00001.parquet", records)
    write_parquet(tmp_path / "hub" / name / "validation-00000-of-00001.parquet", records)
    for folder in (tmp_path, tmp_path / task.folder, tmp_path / "hub", tmp_path / "hub" / name):
        for split in ("train", "validation"):
            (file,) = split_files(folder, task, name, split)
            assert list(read_texts(file, task)) == EXAMPLES[name]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("text\tlabel\na\t1\n", "has the columns text, label, not label, sentence"),
        ("sentence\tlabel\na\t1\nb\n", "line 3 has 1 columns, not 2"),
        ("sentence\tlabel\na\t-1\n", "a label is '-1', not one of 0 to 1, negative, positive"),
        ("sentence\tlabel\na\t2\n", "a label is '2'"),
    ],
)
def test_other_files_are_refused(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(UnreadableFileError, match=reason):
        list(read_texts(tmp_path / "train.tsv", TASKS["sst2"]))


def test_records_of_another_task_are_refused() -> None:
    with pytest.raises(UnreadableFileError, match=r"lacks sentence1 or sentence2 \(found: sentence, label\)"):
        text_of({"sentence": "a", "label": 1}, TASKS["rte"])
    with pytest.raises(UnreadableFileError, match="a label is -1"):
        text_of({"sentence": "a", "label": -1}, TASKS["sst2"])


def test_the_known_numbers_of_examples_are_found(real_data: Path) -> None:
    known = {"sst2": (67349, 872), "rte": (2127, 277), "cola": (7250, 1043)}
    for name, numbers in known.items():
        files = [
            split_files(real_data / "glue", TASKS[name], name, split) for split in ("train", "validation")
        ]
        assert tuple(len(list(read_texts(file, TASKS[name]))) for (file,) in files) == numbers
