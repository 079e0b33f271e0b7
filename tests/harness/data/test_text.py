"""Files and folders: how they are split, and how they are refused."""

import os
from pathlib import Path

import pytest

from gradwire.harness.data.text import TextCorpus, files_below


def _folder(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return TextCorpus(tmp_path)


@pytest.mark.parametrize(
    ("names", "held_out"),
    [
        (("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"), "wiki.valid.tokens"),
        (("train.txt", "test.txt"), "test.txt"),
        (("train/0.txt", "validation/0.txt", "test/0.txt"), "validation/0.txt"),
        (("data/train-00000.txt", "data/dev-00000.txt"), "data/dev-00000.txt"),
    ],
)
def test_a_split_folder_is_taken_as_it_is(tmp_path, names, held_out):
    files = {name: f"this is {name}\n\nmore of {name}\n\nin both" for name in names}
    corpus = _folder(tmp_path, files | {"LICENSE.txt": "no data", "README.md": "neither"}).load()
    assert list(corpus.train) == [f"this is {names[0]}", f"more of {names[0]}", "in both"]
    assert list(corpus.held_out) == [f"this is {held_out}", f"more of {held_out}", "in both"]


@pytest.mark.parametrize("names", [("a.txt", "latest.txt"), ("valid.txt", "test.txt"), ("only_train.txt",)])
def test_without_both_splits_documents_are_held_out_by_hash(tmp_path, names):
    files = {name: "\n\n".join(f"{name} {number}" for number in range(30)) for name in names}
    corpus = _folder(tmp_path, files | {".hidden/x.txt": "hidden\n\ntext"}).load()
    expected = {f"{name} {number}" for name in names for number in range(30)}
    assert set(corpus.train) | set(corpus.held_out) == expected
    assert not set(corpus.train) & set(corpus.held_out)
    assert len(list(corpus.held_out)) == -(-len(expected) // 20)
    assert corpus.split == "last 5% by sha256" and not corpus.streaming


def test_published_splits_are_looked_for_by_their_names(tmp_path):
    names = ("train_sft-0.txt", "train_gen-0.txt", "test_sft-0.txt", "test_gen-0.txt")
    _folder(tmp_path, {name: f"one of {name}\n\ntwo of {name}" for name in names})
    corpus = TextCorpus(tmp_path, published_splits=("train_sft", "test_sft")).load()
    assert list(corpus.train) == ["one of train_sft-0.txt", "two of train_sft-0.txt"]
    assert list(corpus.held_out) == ["one of test_sft-0.txt", "two of test_sft-0.txt"]
    unnamed = TextCorpus(tmp_path, published_splits=("train_sft", "validation")).load()
    assert len(list(unnamed.train)) == 4  # as without names


def test_read_one_by_one_the_hash_alone_decides(tmp_path):
    _folder(tmp_path, {"a.txt": "\n\n".join(f"document {number}" for number in range(400))})
    corpus = TextCorpus(tmp_path, streaming=True).load()
    train, held_out = set(corpus.train), set(corpus.held_out)
    assert len(train | held_out) == 400 and not train & held_out
    assert corpus.streaming and "5%" in corpus.split
    (tmp_path / "b.txt").write_text("\n\n".join(f"more {number}" for number in range(400)))
    longer = TextCorpus(tmp_path, streaming=True).load()
    assert train < set(longer.train) and held_out < set(longer.held_out)


def test_a_file_broken_further_down_is_not_half_used(tmp_path):
    source = _folder(tmp_path, {"a.txt": "one\n\ntwo", "b.jsonl": '{"text": "three"}\n{"text"'})
    with pytest.raises(ValueError, match=r"dataset.path=.*: b.jsonl: line 2 is not JSON") as refusal:
        source.load()
    assert "\n" not in str(refusal.value)


def test_a_file_without_text_in_a_folder_is_skipped_aloud(tmp_path):
    source = _folder(tmp_path, {"a.txt": "one\n\ntwo", "info.json": '{"rows": 2}'})
    with pytest.warns(UserWarning, match=r"skipped: dataset.path=.*: info.json: has no field 'text'"):
        corpus = source.load()
        assert {*corpus.train, *corpus.held_out} == {"one", "two"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "has no file in a known format (.txt"),
        ({"a.txt": ""}, "a.txt: has no text"),
        ({"a.txt": "one document"}, "separate documents by blank lines"),
        ({"a.txt": "same\n\nsame"}, "separate documents by blank lines"),
    ],
)
def test_a_folder_without_documents_is_refused_in_one_line(tmp_path, files, reason):
    with pytest.raises(ValueError) as refusal:
        _folder(tmp_path, files).load()
    assert str(refusal.value).startswith(f"dataset.path={tmp_path}: ")
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"dataset.path=.*nowhere: no such file or folder; correct the path"):
        TextCorpus(tmp_path / "nowhere").fingerprint()


def test_the_fingerprint_follows_the_files_and_settings(tmp_path):
    source = _folder(tmp_path, {"a.txt": "one\n\ntwo"})
    seen = [source.fingerprint(), source.fingerprint()]
    assert seen[0] == seen[1]
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    seen += [source.fingerprint(), TextCorpus(tmp_path, 0.2).fingerprint()]
    seen += [TextCorpus(tmp_path, text_field="body").fingerprint()]
    seen += [TextCorpus(tmp_path, streaming=True).fingerprint()]
    seen += [TextCorpus(tmp_path, published_splits=("a", "b")).fingerprint()]
    (tmp_path / "b.txt").write_text("three")
    seen += [source.fingerprint()]
    assert len(set(seen)) == 7


def test_a_folder_that_cannot_be_searched_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    (tmp_path / "text.txt").write_text("one\n\ntwo")

    def listed(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", listed)
    with pytest.raises(ValueError, match="locked: cannot be read .Permission denied.; .* a folder"):
        TextCorpus(tmp_path).fingerprint()


def test_what_is_hidden_is_left_out(tmp_path):
    for name in (".git/a.txt", "b/.c.txt", "b/c.txt", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "b" / "above").symlink_to(tmp_path)
    assert [file.relative_to(tmp_path).as_posix() for file in files_below(tmp_path)] == ["b/c.txt", "d.txt"]
