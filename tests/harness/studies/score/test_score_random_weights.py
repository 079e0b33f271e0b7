"""Random weights choose the ending with the fewest tokens, which is not what chance would choose."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import hub_records, write_files
from random_checkpoints import save_random

from gradwire.harness.studies.score.benchmarks import BENCHMARKS

Score = Callable[..., dict[str, Any]]
Choices = tuple[list[str], list[str], int]
"""The text before each ending, the endings, and the number of the right one."""

MANY, FEW = 40, int(os.environ.get("GRADWIRE_SCORE_LIMIT", "20"))
"""Documents of our own and real ones; 200 real ones take a minute."""


def choices_of(name: str, record: dict[str, Any]) -> Choices:
    """A document's prompt and endings, put together here from lm-eval's description of the task."""
    if name == "winogrande":
        before, after = record["sentence"].split("_", 1)
        told = [before + record["option1"], before + record["option2"]]
        return told, [after.strip()] * 2, int(record["answer"]) - 1
    if name == "hellaswag":
        context = f"{record['ctx_a']} {record['ctx_b'].capitalize()}"
        prompt = cleaned(f"{record['activity_label']}: {context}")
        endings, right = [cleaned(ending) for ending in record["endings"]], int(record["label"])
    elif name == "piqa":
        prompt, right = f"Question: {record['goal']}\nAnswer:", record["label"]
        endings = [record["sol1"], record["sol2"]]
    elif name == "mmlu":
        lettered = "\n".join(
            f"{letter}. {text}" for letter, text in zip("ABCD", record["choices"], strict=True)
        )
        prompt, endings = f"{record['question'].strip()}\n{lettered}\nAnswer:", list("ABCD")
        right = record["answer"]
    else:
        stem = record.get("question_stem")
        prompt = stem if stem is not None else f"Question: {record['question']}\nAnswer:"
        endings = record["choices"]["text"]
        right = record["choices"]["label"].index(record["answerKey"])
    return [prompt] * len(endings), endings, right


def cleaned(text: str) -> str:
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def expected(name: str, folder: Path, limit: int, tokenizer: Any) -> dict[str, float]:
    """The accuracies of choosing the fewest tokens, in all and per character; of several any one counts."""
    right, by_length, count = 0.0, 0.0, 0
    benchmark = BENCHMARKS[name]
    for task, splits in benchmark.records(folder):
        for record in splits[benchmark.scored[task]][: math.ceil(limit / len(benchmark.splits))]:
            told, endings, answer = choices_of(name, record)
            tokens = [
                len(tokenizer.encode(f"{before} {ending}")) - len(tokenizer.encode(before))
                for before, ending in zip(told, endings, strict=True)
            ]
            right += credit(tokens, answer)
            by_length += credit([n / len(e) for n, e in zip(tokens, endings, strict=True)], answer)
            count += 1
    return {"acc": right / count, "acc_norm": by_length / count}


def credit(costs: list[float] | list[int], answer: int) -> float:
    least = [number for number, cost in enumerate(costs) if cost == min(costs)]
    return (answer in least) / len(least)


def assert_near(found: dict[str, Any], folder: Path, limit: int, tokenizer: Any) -> None:
    for name in BENCHMARKS:
        told = expected(name, folder, limit, tokenizer)
        scored = found["tasks"][name]
        for metric, value in scored["metrics"].items():
            deviation = math.sqrt(told[metric] * (1 - told[metric]) / scored["documents"])
            assert abs(value["value"] - told[metric]) <= 3 * deviation, (name, metric)


def test_on_documents_of_our_own(scored: Score, checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    data = tmp_path / "many"
    write_files(data, {name: hub_records(name, MANY) for name in BENCHMARKS})
    found = scored(f"score.data={data}")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert_near(found, data, 10**9, tokenizer)
    fewest = [expected(name, data, 10**9, tokenizer)["acc"] for name in BENCHMARKS]
    assert max(fewest) - min(fewest) > 0.2


def test_on_real_documents(scored: Score, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    data = Path(os.environ.get("GRADWIRE_DATA", "nowhere"))
    if not (data / "hellaswag").is_dir():
        pytest.skip(f"no benchmarks in {data}; set GRADWIRE_DATA=<folder>")
    roomy = save_random(tmp_path / "roomy", context=2048)
    found = scored(f"checkpoint={roomy}", f"score.data={data}", f"score.limit={FEW}")
    assert not any(each["left_out"] for each in found["tasks"].values())
    assert_near(found, data, FEW, AutoTokenizer.from_pretrained(roomy))
