"""WikiText becomes articles in every form it is published in; other text is cut at blank lines."""

import csv
import io
import json

import pyarrow
import pyarrow.parquet
import pytest

from gradwire.harness.data.corpus import join_rows, split_text
from gradwire.harness.data.text import TextCorpus

LINES = [
    "",
    " = One = ",
    "",
    ' The "first" , it = 1 = 1 ',
    " = x = ",
    "",
    " = = Part = = ",
    "",
    " more ",
    "",
    " = Two = ",
    "",
    " The second ",
    "",
    " = Empty = ",
    "",
    " = Three = ",
    "",
    " The third ",
    "",
    " = No heading at the end = ",
]
ARTICLES = [
    '= One = \n\n The "first" , it = 1 = 1 \n = x = \n\n = = Part = = \n\n more',
    "= Two = \n\n The second",
    "= Empty =",
    "= Three = \n\n The third \n\n = No heading at the end =",
]


def _as_file(folder, form):
    """WikiText as published: text with "" or " " for blank lines, lines quoted as csv, rows of records."""
    if form == "rows.parquet":
        rows = [{"text": f"{line}\n" if line else ""} for line in LINES]
        for shard, part in enumerate((rows[:9], rows[9:])):  # cut within an article
            table = pyarrow.Table.from_pylist(part)
            pyarrow.parquet.write_table(table, folder / f"{shard}-of-2.parquet")
        return
    if form == "rows.jsonl":
        rows = [json.dumps({"text": f"{line}\n" if line else ""}) for line in LINES]
        (folder / "a.jsonl").write_text("\n".join(rows))
        return
    lines = [line or (" " if form == "spaces" else "") for line in LINES]
    if form == "quoted":
        handle = io.StringIO()
        csv.writer(handle, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
            [f"{line}\n"] for line in lines
        )
        (folder / "a.txt").write_text(handle.getvalue())
    else:
        (folder / "a.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("form", ["plain", "spaces", "quoted", "rows.jsonl", "rows.parquet"])
def test_wikitext_is_cut_at_articles_in_every_form(tmp_path, form):
    _as_file(tmp_path, form)
    corpus = TextCorpus(tmp_path).load()
    assert sorted([*corpus.train, *corpus.held_out]) == sorted(ARTICLES)


def test_other_rows_stay_as_they_are():
    rows = ["", "a\nb", "", "= x =", " = Two = \n", ""]
    assert list(join_rows(rows)) == [row.removesuffix("\n") for row in rows[1:]]
    assert list(join_rows([])) == list(join_rows(["", ""])) == []


def test_a_heading_needs_a_blank_line_after_it():
    assert list(split_text([" = Title = ", "text", "", "more"])) == [" = Title = \ntext", "more"]


def test_documents_come_before_the_text_has_ended():
    def endless(lines):
        while True:
            yield from lines

    articles = split_text(endless([" = Title = ", "", "text", ""]))
    assert [next(articles).strip() for _ in range(3)] == ["= Title = \n\ntext"] * 3
    paragraphs = split_text(endless(["one", "two", ""]))
    assert [next(paragraphs) for _ in range(3)] == ["one\ntwo"] * 3


def test_half_a_surrogate_pair_does_not_reach_the_tokenizer(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud83d b"}\n{"text": "c"}')
    corpus = TextCorpus(tmp_path).load()
    assert sorted([*corpus.train, *corpus.held_out]) == ["a? b", "c"]
