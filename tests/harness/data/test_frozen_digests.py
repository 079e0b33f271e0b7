"""Data of every kind, against digests of its rows: order, splits, packing and encoding stay what they are."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from gradwire.harness.data.prepare import prepared_folder
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

WORDS = [
    "gradient",
    "ring",
    "bucket",
    "naïve",
    "Größe",
    "梯度",
    "sum",
    "+=",
    "NA",
    "1.50",
    "null",
    "=",
    '"a"',
    ",",
]

MODELS = {
    "documents": ModelConfig(vocab_size=300, context=64, recipe=RecipeConfig(sequence_length=16)),
    "questions": ModelConfig(
        vocab_size=300, context=64, objective="choice", recipe=RecipeConfig(sequence_length=48)
    ),
    "sentences": ModelConfig(
        family="bert",
        vocab_size=300,
        context=64,
        objective="classification",
        recipe=RecipeConfig(sequence_length=16),
    ),
    "images": ModelConfig(
        family="resnet", objective="image_classification", depths=[1, 1], hidden_size=16, dropout=0.0
    ),
}


def texts(seed: int, number: int = 60) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 40))) for _ in range(number)]


def chats() -> list[dict[str, Any]]:
    return [
        {"id": n, "messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": text}]}
        for n, text in enumerate(texts(5))
    ]


def of_csv(rows: list[list[str]], **form: Any) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, **form).writerows(rows)
    return file.getvalue().encode()


def of_parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=17)
    return file.getvalue()


def png(seed: int, side: int) -> bytes:
    file, draw = io.BytesIO(), np.random.default_rng(seed)
    Image.fromarray(draw.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


WIKITEXT = "".join(
    f" \n = Title {n} = \n \n {text} \n\n = = Section = = \n \n {text[::-1]} \n"
    for n, text in enumerate(texts(3, 30))
)
PARAGRAPHS = "\n\n".join(text.replace(" ring ", "\n") for text in texts(1)).encode()
JSONL = "\n".join(json.dumps({"n": n, "text": text}) for n, text in enumerate(texts(2))).encode()
TABLE = [["n", "text"], *([str(n), text] for n, text in enumerate(texts(4)))]
QUESTIONS = [[f"{n}: {text}", "1", "NA", text[:9], "", "ABCD"[n % 4]] for n, text in enumerate(texts(6))]
GLUE = "sentence\tlabel\n" + "".join(f"{text} \t{n % 2}\n" for n, text in enumerate(texts(7)))
COLA = "".join(f"gj04\t{n % 2}\t*\t{text}\n" for n, text in enumerate(texts(8)))
IMAGES = {
    f"{split}/{label}/{n}.png": png(10 * n + len(split + label), 8 + n)
    for split in ("train", "test")
    for label in ("cat", "dog", "eel")
    for n in range(4)
}

FILES: dict[str, dict[str, bytes]] = {
    "lines": {"a.txt": "\n".join(texts(0)).encode()},
    "paragraphs": {"b.txt": b"\xef\xbb\xbf" + PARAGRAPHS.replace(b"\n", b"\r\n"), "a.raw": PARAGRAPHS[:999]},
    "quoted lines": {"a.txt": of_csv([[f"{text}\n"] for text in texts(9)], quoting=csv.QUOTE_ALL)},
    "wikitext": {"wiki.valid.tokens": WIKITEXT[:2000].encode(), "wiki.train.tokens": WIKITEXT.encode()},
    "wikitext rows": {
        "a.jsonl": "".join(json.dumps({"text": f"{line}\n"}) + "\n" for line in WIKITEXT.split("\n")).encode()
    },
    "jsonl": {"a.jsonl": JSONL},
    "json": {"a.json": json.dumps([json.loads(line) for line in JSONL.decode().split("\n")]).encode()},
    "csv": {"a.csv": of_csv(TABLE)},
    "tsv": {"a.tsv": "\n".join("\t".join(row) for row in TABLE).encode()},
    "parquet": {"a.parquet": of_parquet([json.loads(line) for line in JSONL.decode().split("\n")])},
    "gz": {"a.jsonl.gz": gzip.compress(JSONL)},
    "bz2": {"a.jsonl.bz2": bz2.compress(JSONL)},
    "xz": {"a.jsonl.xz": lzma.compress(JSONL)},
    "zst": {"a.jsonl.zst": pyarrow.compress(JSONL, codec="zstd", asbytes=True)},
    "mixed": {"a.txt": PARAGRAPHS, "b/c.jsonl": JSONL, "b/a.csv": of_csv(TABLE), ".hidden.txt": b"none"},
    "chats": {"a.jsonl": "\n".join(map(json.dumps, chats())).encode()},
    "chats of parquet": {"a.parquet": of_parquet(chats())},
    "mmlu": {
        "dev/x_dev.csv": of_csv(QUESTIONS[:3]),
        "val/x_val.csv": of_csv(QUESTIONS[3:20]),
        "test/b_test.csv": of_csv(QUESTIONS[10:40]),
        "test/a_test.csv": of_csv(QUESTIONS[40:]),
    },
    "sst2": {"SST-2/train.tsv": GLUE.encode(), "SST-2/dev.tsv": "\n".join(GLUE.split("\n")[:20]).encode()},
    "cola": {"train.tsv": COLA.encode(), "dev.tsv": "".join(COLA.splitlines(True)[30:]).encode()},
    "images": IMAGES,
}

SPLIT = {"mmlu": "validation", "sst2": "validation", "cola": "validation", "images": "test"}

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "lines": ("lines", {}, "1fb1322eea2ff177"),
    "lines, streamed": ("lines", {"streaming": True, "max_train_tokens": 400}, "b60acc527849643d"),
    "paragraphs": ("paragraphs", {}, "54c681a341f4e40d"),
    "quoted lines": ("quoted lines", {}, "d4b6dd451f74ad62"),
    "wikitext": ("wikitext", {}, "c3af84f24756bd2e"),
    "wikitext rows": ("wikitext rows", {}, "ce7e2bac500b86ad"),
    "jsonl": ("jsonl", {}, "bf1cc4026ae2dfb7"),
    "json": ("json", {}, "bf1cc4026ae2dfb7"),
    "csv": ("csv", {}, "32e0316587c4560b"),
    "tsv": ("tsv", {}, "32e0316587c4560b"),
    "parquet": ("parquet", {}, "bf1cc4026ae2dfb7"),
    "gz": ("gz", {}, "bf1cc4026ae2dfb7"),
    "bz2": ("bz2", {}, "bf1cc4026ae2dfb7"),
    "xz": ("xz", {}, "bf1cc4026ae2dfb7"),
    "zst": ("zst", {}, "bf1cc4026ae2dfb7"),
    "mixed": ("mixed", {"max_held_out_sequences": 5}, "0c19a98536cfd319"),
    "chats": ("chats", {}, "4fdcec55a0c9bd52"),
    "chats, assistant": ("chats", {"loss_on": "assistant"}, "265f9bf95651d264"),
    "chats of parquet, assistant": ("chats of parquet", {"loss_on": "assistant"}, "265f9bf95651d264"),
    "mmlu": ("mmlu", {"kind": "questions", "train_split": "auxiliary_train"}, "526458cfcfd4b051"),
    "sst2": ("sst2", {"kind": "sentences", "configuration": "sst2"}, "716efb93c3c8447a"),
    "cola": (
        "cola",
        {"kind": "sentences", "configuration": "cola", "max_held_out_sequences": 7},
        "406c67838f615e34",
    ),
    "images": (
        "images",
        {"kind": "images", "image_size": 12, "max_held_out_sequences": 7},
        "7fac36e5994c1e81",
    ),
}
"""Files, settings and digest of each case."""

EMBEDDED = {
    "documents": "d1356b3545afaf1d",
    "questions": "428e44446b4b7850",
    "sentences": "c456dbbae9e8e441",
    "images": "f64fe657538625c2",
}
"""Digests by kind. Text is that of one Python version."""


def digest_of(folder: Path) -> str:
    """sha256 of the rows, the columns and the description of prepared data."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.npy")):
        values = np.load(file)
        digest.update(f"{file.name} {values.dtype} {values.shape}".encode() + values.tobytes())
    description = json.loads((folder / "description.json").read_text())
    digest.update(json.dumps({**description, "corpus": None}).encode())
    return digest.hexdigest()[:16]


def prepared(dataset: DatasetConfig, cache: Path) -> str:
    model = MODELS[dataset.kind]
    return digest_of(
        prepared_folder(resolve_dataset(dataset, model, "paper", cache, dataset.kind), model, cache)
    )


@pytest.mark.parametrize("case", CASES)
def test_files_give_the_same_rows_as_ever(case: str, tmp_path: Path) -> None:
    files, settings, expected = CASES[case]
    for name, content in FILES[files].items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    dataset = DatasetConfig(
        **{"name": "text", "path": str(tmp_path / "data"), "held_out_split": SPLIT.get(files), **settings}
    )
    assert prepared(dataset, tmp_path / "cache") == expected


@pytest.mark.parametrize("kind", ["documents", "questions", "sentences", "images"])
def test_embedded_data_gives_the_same_rows_as_ever(kind: str, tmp_path: Path) -> None:
    if kind != "images" and sys.version_info[:3] != (3, 11, 7):
        pytest.skip("the embedded text differs between versions of Python")
    dataset = DatasetConfig(name="embedded", kind=kind, max_train_tokens=None)
    assert prepared(dataset, tmp_path) == EMBEDDED[kind]
