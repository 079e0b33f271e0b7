"""Every file format gives the same documents; files without text are refused in one line."""

import bz2
import csv
import gzip
import json
import lzma

import pyarrow
import pyarrow.parquet
import pytest

from gradwire.harness.data.formats import UnreadableFileError, read_documents

DOCUMENTS = ['First "quoted", with a comma.\nSecond line — naïve.', "Another\tdocument.", "x" * 200_000]
RECORDS = [{"id": 1, "text": document} for document in DOCUMENTS]


def _write_csv(path, documents):
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerows([["id", "text"], *([str(n), document] for n, document in enumerate(documents))])


def _write(path):
    lines = "\n".join(json.dumps(record) for record in RECORDS)
    if path.suffix == ".txt":
        path.write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text(lines + "\n\n")
    elif path.name == "lines.json":
        path.write_text(lines)
    elif path.suffix == ".json":
        path.write_text(json.dumps(RECORDS))
    elif path.suffix == ".csv":
        _write_csv(path, DOCUMENTS)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "lines.json", "a.csv", "a.parquet"])
def test_each_format_gives_the_documents(tmp_path, name):
    _write(tmp_path / name)
    limit = csv.field_size_limit()
    assert read_documents(tmp_path / name, "text") == DOCUMENTS
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv"])
@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_compressed_files_are_read_alike(tmp_path, name, suffix, compress):
    _write(tmp_path / name)
    packed = tmp_path / f"{name}.{suffix}"
    packed.write_bytes(compress((tmp_path / name).read_bytes()))
    assert read_documents(packed, "text") == DOCUMENTS
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(UnreadableFileError, match="cannot be read"):
        read_documents(packed, "text")


def test_tabs_separate_without_quoting_and_the_field_is_chosen(tmp_path):
    (tmp_path / "a.tsv").write_text('sentence\tlabel\nit "works\t1\n\t0\nfine , really\t0\n')
    assert read_documents(tmp_path / "a.tsv", "sentence") == ['it "works', "fine , really"]


def test_chats_become_text(tmp_path):
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": messages}]), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read_documents(tmp_path / name, "text") == ["user: Why?\n\nassistant: Because."]


@pytest.mark.parametrize("line", ["{}\n", '"{}"\n'])
def test_wikitext_is_cut_at_articles_also_when_quoted_as_csv(tmp_path, line):
    lines = [
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
    ]
    text = [*lines, " = Two = ", "", " The second ", ""]
    quoted = line.startswith('"')
    (tmp_path / "a.txt").write_text("".join(line.format(t.replace('"', '""') if quoted else t) for t in text))
    documents = read_documents(tmp_path / "a.txt", "text")
    assert documents == ["\n".join(lines).strip(), "= Two = \n\n The second"]


def test_text_is_cut_at_blank_lines_else_at_lines(tmp_path):
    (tmp_path / "a.txt").write_text('"Quoted," he said.\nStill one.\n \n\n = Not a title = \n\nlast')
    assert read_documents(tmp_path / "a.txt", "text") == [
        '"Quoted," he said.\nStill one.',
        "= Not a title =",
        "last",
    ]
    (tmp_path / "b.txt").write_text("one article\nanother\n")
    assert read_documents(tmp_path / "b.txt", "text") == ["one article", "another"]


def test_half_a_surrogate_pair_in_json_does_not_reach_the_tokenizer(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud83d b"}')
    assert read_documents(tmp_path / "a.jsonl", "text") == ["a? b"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.zip", b"PK", "unknown format; use one of .txt"),
        ("a.txt", b"", "has no text"),
        ("a.txt", b" \n\n ", "has no text"),
        ("a.txt", bytes(range(256)), "not UTF-8 text"),
        ("a.txt", b"abc\0\0\0def", "is binary"),
        ("a.txt.gz", b"not gzip", "cannot be read"),
        ("a.jsonl", b'{"text": "a"}\n{"text"', "line 2 is not JSON"),
        (
            "a.jsonl",
            b'{"body": "a"}',
            "no field 'text' (text) or 'messages' but body; set dataset.text_field=",
        ),
        ("a.jsonl", b"[1, 2]", "set dataset.text_field="),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', "lacks 'role' or 'content'"),
        ("a.json", b"[", "line 1 is not JSON"),
        ("a.csv", b"id,body\n1,a", "but id, body; set dataset.text_field="),
        ("a.csv", b"", "set dataset.text_field="),
        ("a.parquet", b"PAR1", "is not a parquet file"),
    ],
)
def test_files_without_text_are_refused(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFileError) as refusal:
        read_documents(tmp_path / name, "text")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
