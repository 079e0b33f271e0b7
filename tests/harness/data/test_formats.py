"""Every file format gives the same documents; files without text are refused in one line."""

import bz2
import csv
import gzip
import json
import lzma

import pyarrow
import pyarrow.parquet
import pytest

from gradwire.harness.data.chat import plain_chat
from gradwire.harness.data.formats import decompress_zstd, read_pieces
from gradwire.harness.data.records import UnreadableFileError

DOCUMENTS = ['First "quoted", with a comma.\nSecond line — naïve.', "Another\tdocument.", "x" * 200_000]
RECORDS = [{"id": 1, "text": document} for document in DOCUMENTS]


def read_documents(path, text_field):
    pieces = read_pieces(path, text_field, plain_chat)
    return [text for piece in pieces if (text := piece.strip())]


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


def test_zstd_files_are_read_alike_also_in_several_frames(tmp_path):
    lines = [json.dumps(record).encode() + b"\n" for record in RECORDS]
    frames = [zstd(lines[0]), zstd(b"".join(lines[1:]))]
    packed = tmp_path / "a.jsonl.zst"
    packed.write_bytes(b"".join(frames))
    assert read_documents(packed, "text") == DOCUMENTS
    with packed.open("rb") as handle:
        assert decompress_zstd(handle).read() == b"".join(lines)
    packed.write_bytes(b"".join(frames)[:-5])
    with pytest.raises(UnreadableFileError, match="cannot be read"):
        read_documents(packed, "text")


def zstd(content):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def test_a_long_file_is_not_read_before_its_documents_are_asked_for(tmp_path):
    good = "".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(50_000))
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_text(good + "{broken")
        pieces = read_pieces(tmp_path / name, "text", plain_chat)
        assert [next(pieces) for _ in range(3)] == ["document 0", "document 1", "document 2"]
        with pytest.raises(UnreadableFileError, match="line 50001 is not JSON"):
            list(pieces)
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\n\n" * 50_000 + b"\xff")
    assert next(read_pieces(tmp_path / "a.txt", "text", plain_chat)) == "one"
    (tmp_path / "a.csv").write_bytes(b"id,text\n" + b"1,one\n" * 50_000 + b"\xff")
    assert next(read_pieces(tmp_path / "a.csv", "text", plain_chat)) == "one"
    with pytest.raises(UnreadableFileError, match="not UTF-8"):
        list(read_pieces(tmp_path / "a.csv", "text", plain_chat))


def test_tabs_separate_without_quoting_and_the_field_is_chosen(tmp_path):
    (tmp_path / "a.tsv").write_text('sentence\tlabel\nit "works\t1\n\t0\nfine , really\t0\n')
    assert read_documents(tmp_path / "a.tsv", "sentence") == ['it "works', "fine , really"]


def test_chats_become_text(tmp_path):
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": messages}]), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read_documents(tmp_path / name, "text") == ["user: Why?\n\nassistant: Because."]


def test_text_is_cut_at_blank_lines_else_at_lines(tmp_path):
    (tmp_path / "a.txt").write_text('"Quoted," he said.\nStill one.\n \n\n = Not a title = \n\nlast')
    assert read_documents(tmp_path / "a.txt", "text") == [
        '"Quoted," he said.\nStill one.',
        "= Not a title =",
        "last",
    ]
    (tmp_path / "b.txt").write_text("one article\nanother\n")
    assert read_documents(tmp_path / "b.txt", "text") == ["one article", "another"]


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
        ("a.jsonl", b"[1, 2]", "record 1 is a list, neither text nor a record with fields; leave it out"),
        ("a.json", b'["a", null]', "record 2 is null, neither text nor a record"),
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"text": 5}',
            "record 2: 'text' is a number, not text; correct it, or set",
        ),
        ("a.json", b'[{"text": "a"}, {"text": {}}]', "record 2: 'text' is an object, not text"),
        ("a.jsonl", b'{"text": "a"}\n{"id": 1}', "record 2 has no field 'text' (text) or 'messages' but id"),
        ("a.jsonl", b'{"text": null}', "has no text; use another file"),
        ("a.jsonl", b'{"messages": "a"}', "record 1: 'messages' is text, not a conversation; set dataset"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', "record 1: a message lacks 'role' or 'content'"),
        ("a.jsonl", b'{"messages": ["Hello"]}', "lacks 'role' or 'content'"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": null}]}', "'content' is null, not text"),
        ("a.json", b"[", "line 1 is not JSON"),
        ("a.csv", b"id,body\n1,a", "but id, body; set dataset.text_field="),
        ("a.csv", b"", "set dataset.text_field="),
        ("a.csv", b'text,id\none,1\n"two,2\nthree,3\n', "a quote is never closed, before 'two,2 three,3'"),
        ("a.csv", b'id,text\n1,"two', "a quote is never closed, before 'two'"),
        ("a.csv", b"id,text\n1,one\n2,two, and more\n", "row 3 has 3 fields, the header 2; put quotes"),
        ("a.tsv", b"id\ttext\n1\tone\tmore\n", "row 2 has 3 fields, the header 2; put quotes"),
        ("a.parquet", b"PAR1", "is not a parquet file"),
    ],
)
def test_files_without_text_are_refused(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFileError) as refusal:
        read_documents(tmp_path / name, "text")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_nulls_are_empty_as_empty_fields_of_a_table_are(tmp_path):
    """Exports of published data sets have them, first or later."""
    records = [{"text": None, "id": 1}, {"text": "one", "id": 2}, {"text": None, "id": 3}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "b.json").write_text(json.dumps(records))
    (tmp_path / "c.csv").write_text("text,id\n,1\none,2\n,3\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "d.parquet")
    (tmp_path / "e.jsonl").write_text('{"messages": null}\n{"text": "one"}\n{"text": null}')
    for name in ("a.jsonl", "b.json", "c.csv", "d.parquet", "e.jsonl"):
        assert list(read_pieces(tmp_path / name, "text", plain_chat)) == ["", "one", ""]


def test_conversations_are_asked_for_by_the_name_they_have(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"data": "Compose a post"}')
    with pytest.raises(UnreadableFileError, match=r"^has no field 'messages' but data; set"):
        read_documents(tmp_path / "a.jsonl", "messages")
