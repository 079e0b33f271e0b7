"""Images: the same from folders, zips and the hub; wrong and hostile files are refused in one line."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from presets import preset

from gradwire.harness.data import images as image_module
from gradwire.harness.data.images import ImageData, read_images
from gradwire.harness.data.prepare import data_source, dataset_available, prepared_folder, read_prepared
from gradwire.harness.data.settings import DatasetConfig, published_settings, resolve_dataset
from gradwire.harness.files import hostile
from gradwire.harness.objectives.examples import ImageClassification, moved
from gradwire.harness.runtime.conf import conf_directory

CONF = conf_directory() / "dataset"
MODEL = preset("resnet_small")
LABELS = ("cat", "dog")


def png(number: int, side: int = 8) -> bytes:
    draw, file = np.random.default_rng(number), io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def files(split: str) -> Iterator[tuple[str, str, bytes]]:
    """Label, name and contents; the first training image is a copy of a held-out one."""
    for number in range(6 if split == "train" else 4):
        copied = 100 if split == "train" and number == 0 else number + (0 if split == "train" else 100)
        yield LABELS[number % 2], f"{number}.png", png(copied)


def in_folders(path: Path) -> None:
    for split in ("train", "test"):
        for label, name, content in files(split):
            (path / split / label).mkdir(parents=True, exist_ok=True)
            (path / split / label / name).write_bytes(content)


def in_zips(path: Path) -> None:
    """The training split's has the split's folder, and what macOS adds."""
    path.mkdir(exist_ok=True)
    for split, above in (("train", "train/"), ("test", "")):
        with zipfile.ZipFile(path / f"{split}.zip", "w") as archive:
            archive.writestr("__MACOSX/cat/._0.png", b"?")
            for label, name, content in reversed(list(files(split))):
                archive.writestr(f"{above}{label}/{name}", content)


def on_the_hub(path: Path) -> None:
    """A repository as CIFAR-10's, below the working directory."""
    import datasets

    repository = path / "uoft-cs" / "cifar10" / "plain_text"
    repository.mkdir(parents=True)
    kinds = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=list(LABELS))})
    for split in ("train", "test"):
        rows = sorted((label, name, content) for label, name, content in files(split))
        made = datasets.Dataset.from_dict(
            {
                "img": [{"bytes": content, "path": None} for _, _, content in rows],
                "label": [LABELS.index(label) for label, _, _ in rows],
            },
            features=kinds,
        )
        made.to_parquet(str(repository / f"{split}-00000-of-00001.parquet"))


def settings(**changes: object) -> DatasetConfig:
    asked = DatasetConfig(**(published_settings("cifar10", CONF, "any") | {"image_size": 8} | changes))
    return resolve_dataset(asked, MODEL, "paper", CONF, "images")


def prepared(dataset: DatasetConfig, cache: Path) -> ImageData:
    found = read_prepared(prepared_folder(dataset, MODEL, cache), dataset)
    assert isinstance(found, ImageData)
    return found


def test_folders_zips_and_the_hub_give_the_same_images(home: Path) -> None:
    """In CIFAR-10's order of labels, without the copies of held-out images, and found again in the cache."""
    in_folders(home / "folders")
    in_zips(home / "zips")
    on_the_hub(home)
    assert dataset_available(settings(), MODEL) is None
    found = [
        prepared(settings(path=str(home / "folders")), home / "a"),
        prepared(settings(path=str(home / "zips")), home / "b"),
        prepared(settings(), home / "c"),
    ]
    for data in found:
        assert torch.equal(data.train, found[0].train) and torch.equal(data.held_out, found[0].held_out)
        assert data.labels == LABELS and data.description["left_out_of_train"] == 1
        assert data.description["sha256"] == found[0].description["sha256"]
        assert data.column("train", "label").tolist() == [0, 0, 1, 1, 1]
        assert data.column("held_out", "label").tolist() == [0, 0, 1, 1]
    pixels = found[0].pixels("train", torch.arange(5))
    assert pixels.shape == (5, 3, 8, 8)
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-5
    assert pixels.std((0, 2, 3), correction=0) == pytest.approx([1, 1, 1], abs=1e-4)
    assert (
        found[0].held_out[0].view(3, 8, 8).permute(1, 2, 0).tolist()
        == np.asarray(Image.open(io.BytesIO(png(100)))).tolist()
    )
    (home / "folders" / "train" / "cat" / "0.png").unlink()  # the cache does not need it
    assert read_images(prepared_folder(settings(path=str(home / "zips")), MODEL, home / "b"), augment=False)


def test_a_part_of_the_held_out_split_is_taken_from_all_labels(tmp_path: Path) -> None:
    in_folders(tmp_path)
    data = prepared(settings(path=str(tmp_path), max_held_out_sequences=2, image_size=16), tmp_path / "cache")
    assert data.column("held_out", "label").tolist() == [0, 1] and data.size == 16


def test_embedded_images_are_the_same_everywhere(tmp_path: Path) -> None:
    """Their digest is that of arithmetic on whole numbers; their size is theirs alone."""
    asked = resolve_dataset(DatasetConfig(), MODEL, "tiny", CONF, "images")
    assert (asked.name, asked.image_size) == ("embedded", 16)
    data = prepared(asked, tmp_path)
    assert (len(data.train), len(data.held_out)) == (1600, 400)
    assert data.description["sha256"].startswith("3f4929c39aa8")


def test_augmentation_is_a_function_of_seed_step_and_image(tmp_path: Path) -> None:
    in_folders(tmp_path)
    dataset = settings(path=str(tmp_path), augment="crop_flip")
    objective, rows = ImageClassification(prepared(dataset, tmp_path / "cache")), torch.arange(5)
    first, again = (objective.batch(rows, key=(0, 3))["pixel_values"] for _ in range(2))
    alone = objective.batch(rows[2:3], key=(0, 3))["pixel_values"]
    later = objective.batch(rows, key=(0, 4))["pixel_values"]
    assert torch.equal(first, again) and torch.equal(first[2:3], alone) and not torch.equal(first, later)
    image = torch.arange(1.0, 3 * 64 + 1).view(3, 8, 8)
    made = torch.stack([moved(image, (key,)) for key in range(64)])
    assert len({tuple(each.flatten().tolist()) for each in made}) == 18  # 3 x 3 places, mirrored or not
    assert any(torch.equal(each, image) for each in made)
    held_out = objective.batch(rows[:4], split="held_out", key=(0, 3))["pixel_values"]
    assert torch.equal(held_out, objective.data.pixels("held_out", rows[:4]))


def bomb() -> bytes:
    """A PNG of few bytes that promises 2³² pixels."""
    header = struct.pack(">IIBBBBB", 1 << 16, 1 << 16, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_images_without_a_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dataset.image_size=null: .*dataset.image_size=32"):
        settings(image_size=None)
    with pytest.raises(ValueError, match="dataset.image_size=32 has no effect with model.objective=causal"):
        resolve_dataset(DatasetConfig(image_size=32), preset("gpt2"), "tiny", CONF)
    with pytest.raises(ValueError, match="dataset.loss_on=assistant has no effect with model.obj"):
        settings(loss_on="assistant")


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda path: put(path / "data_batch_1", b"x"),
            "data_batch_1 is a Python pickle, and pickles are never read",
        ),
        (
            lambda path: put(path / "train" / "cat" / "9.txt", b"x"),
            "train: cat/9.txt is not one of .png, .jpg",
        ),
        (lambda path: put(path / "train" / "cat" / "9.png", b"x"), "train: cat/9.png: is not a PNG or JPEG"),
        (lambda path: put(path / "train" / "cat" / "9.png", png(1)[:60]), "cat/9.png: is not a PNG or JPEG"),
        (lambda path: put(path / "train" / "cat" / "9.png", bomb()), "cat/9.png: "),
        (lambda path: put(path / "test" / "cow" / "9.png", png(1)), "label cow is in test alone"),
        (lambda path: (path / "test").rename(path / "else"), "no images of the split test"),
        (lambda path: put(path / "test.zip", b"PK") or (path / "test").rename(path / "x"), "test.zip"),
    ],
)
def test_wrong_files_are_refused(spoil: Callable[[Path], object], told: str, tmp_path: Path) -> None:
    in_folders(tmp_path / "data")
    spoil(tmp_path / "data")
    with pytest.raises(ValueError) as refused:
        prepared(settings(path=str(tmp_path / "data")), tmp_path / "cache")
    assert told in str(refused.value) and "\n" not in str(refused.value) and ";" in str(refused.value)


def test_limits_of_files_entries_and_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_zips(tmp_path)
    dataset = settings(path=str(tmp_path))
    for module, name, told in (
        (image_module, "MOST_PIXELS", "has 8 x 8 pixels, more than 20"),
        (hostile, "MOST_DIRECTORY", "has a list of entries longer than 20 bytes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 20)
            with pytest.raises(ValueError, match=told):
                prepared(dataset, tmp_path / "cache")
    with zipfile.ZipFile(tmp_path / "train.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/0.png", bytes(40 << 20))
    with pytest.raises(ValueError, match=r"train.zip: expands to 40 MiB from"):
        data_source(dataset).load()
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("0.png", png(0))
    with pytest.raises(ValueError, match="0.png is not in the folder of a label"):
        data_source(dataset).load()


def test_a_record_without_an_image_is_refused(home: Path) -> None:
    on_the_hub(home)
    file = home / "uoft-cs" / "cifar10" / "plain_text" / "train-00000-of-00001.parquet"
    table = pyarrow.parquet.read_table(file)
    rows = table.to_pylist()
    rows[1]["img"] = None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=table.schema), file)
    with pytest.raises(
        ValueError, match=r"dataset=cifar10 \(uoft-cs/cifar10\), split train: record 1 has no"
    ):
        prepared(settings(), home / "cache")
    with pytest.raises(ValueError, match="no field photo"):
        prepared(settings(image_field="photo"), home / "cache")
