"""Small repositories in the shapes of the published data sets, as folders that `datasets` reads."""

import gzip
import json
import random

import pyarrow
import pyarrow.parquet

WORDS = ["the", "gradient", "of", "a", "worker", "travels", "in", "ring", "and", "is", "added", "to", "next"]


def make_repository(name, folder):
    """The repository of the data set `name`, below `folder` under its own name; returns its own folder."""
    hub, make = (REPOSITORIES | EXAMPLES)[name]
    repository = folder / hub
    repository.mkdir(parents=True, exist_ok=True)
    make(repository)
    return repository


def sentences(seed, number):
    choose = random.Random(seed)
    return [
        " ".join(choose.choices(WORDS, k=choose.randint(5, 60))) + f" ({seed} {index})"
        for index in range(number)
    ]


def write_parquet(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def write_zstd(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.CompressedOutputStream(pyarrow.OSFile(str(file), "wb"), "zstd") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def _card(repository, configurations):
    lines = ["---", "configs:"]
    for configuration, splits in configurations.items():
        lines += [f"- config_name: {configuration}", "  data_files:"]
        for split, path in splits.items():
            lines += [f"  - split: {split}", f"    path: {path}"]
    (repository / "README.md").write_text("\n".join([*lines, "---", "# A card", ""]))


def _wikitext(repository):
    splits = ("train", "validation", "test")
    names = ("wikitext-103-raw-v1", "wikitext-2-raw-v1")
    _card(repository, {name: {split: f"{name}/{split}-*" for split in splits} for name in names})
    for name in names:
        for split in splits:
            rows = [""]
            for number, text in enumerate(sentences(f"{name} {split}", 40 if split == "train" else 8)):
                rows += [f" = {split} {number} = \n", "", f" {text} \n", "", " = = Part = = \n", ""]
                rows += [f" {text[::-1]} \n", ""]
            cut = len(rows) // 2 + 3  # within an article
            for shard, part in enumerate((rows[:cut], rows[cut:])):
                file = repository / name / f"{split}-{shard:05d}-of-00002.parquet"
                write_parquet(file, [{"text": row} for row in part])


def _ultrachat(repository):
    for split, number in (("train_sft", 60), ("test_sft", 10), ("train_gen", 20), ("test_gen", 5)):
        rows = [
            {
                "prompt": text,
                "prompt_id": f"{index:064d}",
                "messages": [
                    {"content": text, "role": "user"},
                    {"content": text[::-1], "role": "assistant"},
                ],
            }
            for index, text in enumerate(sentences(split, number))
        ]
        write_parquet(repository / "data" / f"{split}-00000-of-00001-a3ecf92756993583.parquet", rows)


def _openwebtext(repository):
    _card(repository, {"plain_text": {"train": "plain_text/train-*"}})
    for shard in range(2):
        rows = [{"text": text} for text in sentences(f"web {shard}", 200)]
        write_parquet(repository / "plain_text" / f"train-{shard:05d}-of-00002.parquet", rows)


def _openwebtext2(repository):
    for shard in range(2):
        rows = [{"title": "A page", "text": text} for text in sentences(f"web2 {shard}", 200)]
        write_parquet(repository / f"webtext2-{shard:05d}-of-00002.parquet", rows)


def _wikipedia(repository):
    names = ("20231101.en", "20231101.simple")
    _card(repository, {name: {"train": f"{name}/train-*"} for name in names})
    for name in names:
        for shard in range(2):
            rows = [
                {"id": str(index), "url": "https://example.org/", "title": "A page", "text": text}
                for index, text in enumerate(sentences(f"{name} {shard}", 200))
            ]
            write_parquet(repository / name / f"train-{shard:05d}-of-00002.parquet", rows)


def _pile(repository):
    for file, number in (("train/00", 60), ("train/01", 60), ("val", 20), ("test", 20)):
        rows = [
            {"text": text, "meta": {"pile_set_name": "Pile-CC"}} for text in sentences(f"pile {file}", number)
        ]
        write_zstd(repository / f"{file}.jsonl.zst", rows)


def _c4(repository):
    path = "en/c4-{}.*.json.gz"
    _card(repository, {"en": {split: path.format(split) for split in ("train", "validation")}})
    for split, shards in (("train", 3), ("validation", 1)):
        for shard in range(shards):
            rows = [
                {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/"}
                for text in sentences(f"c4 {split} {shard}", 60)
            ]
            file = repository / "en" / f"c4-{split}.{shard:05d}-of-{shards:05d}.json.gz"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def _mmlu(repository):
    splits = ("test", "validation", "dev", "auxiliary_train")
    _card(repository, {"all": {split: f"all/{split}-*" for split in splits}})
    for split in splits:
        rows = [
            {"question": text, "subject": "rings", "choices": list(WORDS[:4]), "answer": index % 4}
            for index, text in enumerate(sentences(split, 30))
        ]
        write_parquet(repository / "all" / f"{split}-00000-of-00001.parquet", rows)


def _glue(repository):
    fields = {"sst2": ("sentence",), "rte": ("sentence1", "sentence2"), "cola": ("sentence",)}
    splits = ("train", "validation", "test")
    _card(repository, {task: {split: f"{task}/{split}-*" for split in splits} for task in fields})
    for task, names in fields.items():
        for split in splits:
            rows = [
                {name: f"{text} {name}" for name in names}
                | {"label": -1 if split == "test" else index % 2, "idx": index}
                for index, text in enumerate(sentences(f"{task} {split}", 30))
            ]
            write_parquet(repository / task / f"{split}-00000-of-00001.parquet", rows)


REPOSITORIES = {
    "wikitext103": ("Salesforce/wikitext", _wikitext),
    "wikitext2": ("Salesforce/wikitext", _wikitext),
    "ultrachat": ("HuggingFaceH4/ultrachat_200k", _ultrachat),
    "openwebtext": ("Skylion007/openwebtext", _openwebtext),
    "openwebtext2": ("Geralt-Targaryen/openwebtext2", _openwebtext2),
    "wikipedia": ("wikimedia/wikipedia", _wikipedia),
    "pile": ("monology/pile-uncopyrighted", _pile),
    "c4": ("allenai/c4", _c4),
}

EXAMPLES = {"mmlu": ("cais/mmlu", _mmlu), "glue": ("nyu-mll/glue", _glue)}
"""Repositories of questions and labelled sentences."""
