"""Names of codecs, models and settings in the words of the field, as pages and captions write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NAMES = {
    "codec": {
        "fp32": "no compression",
        "bf16": "BF16",
        "dynamiq": "DynamiQ",
        "dynamiq_plus": "DynamiQ plus",
        "mxfp8": "MXFP8",
        "mxfp6": "MXFP6",
        "mxfp4": "MXFP4",
        "thc": "THC",
        "omnireduce": "OmniReduce",
        "uniform": "uniform quantization",
        "lattice": "the lattice codec",
        "linear": "linear quantization",
        "qsgd": "QSGD",
        "tfp": "TFP",
        "onebit": "1-bit SGD",
        "terngrad": "TernGrad",
        "topk": "top-k",
        "randomk": "random-k",
        "powersgd": "PowerSGD",
        "edgc": "EDGC",
        "optimus_cc": "Optimus-CC",
        "aqgb": "AQGB",
        "all_to_all": "all-to-all",
    },
    "experiment": {
        "sharded_baseline": "no compression",
        "baseline": "no compression",
        "sdp4bit": "SDP4Bit",
        "zeropp": "ZeRO++",
        "qw": "qW",
        "qwd": "qWD",
        "ulq": "ULq",
        "tlq": "TLq",
        "tlq_hs": "TLq-HS",
    },
    "scheme": {"aqgb": "AQGB", "fixed": "fixed bits", "none": "no compression", "ideal": "no waiting"},
    "model": {
        "bert_large": "BERT-large",
        "bert_345m": "BERT-345M",
        "llama1b": "LLaMA 1B, chat",
        "llama1b_mmlu": "LLaMA 1B, MMLU",
        "gemma1b": "Gemma 1B",
        "gpt2": "GPT-2",
        "gpt2_medium": "GPT-2 medium",
        "tinybert_glue": "TinyBERT, GLUE",
        "minilm_glue": "MiniLM, GLUE",
        "smollm2": "SmolLM2",
        "resnet_small": "a small ResNet",
        "resnet50": "ResNet50",
        "resnext101": "ResNeXt101",
    },
    "alignment": {
        "aligned": "stages aligned",
        "shared": "one rank for all stages",
        "own": "each stage its own rank",
    },
    "network": {"shaped": "shaped links", "simulated": "modelled links"},
    "configuration": {"sst2": "SST-2", "cola": "CoLA", "rte": "RTE"},
    "dataset": {"mmlu": "MMLU", "ultrachat": "UltraChat", "cifar10": "CIFAR-10", "glue": "GLUE"},
}
"""Names by axis; others are written as they are, but for models named by their size."""


def rate(mbit: float) -> str:
    """A rate of links given in Mbit/s: `100 Mbit/s`, `2.5 Gbit/s`."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


WORDS: dict[str, Callable[[Any], str]] = {
    "bits": lambda value: f"{value:g} bits" if isinstance(value, int | float) else f"bits {value}",
    "workers": lambda value: f"{value} workers",
    "rank": lambda value: f"rank {value}",
    "rate_mbit": lambda value: rate(float(value)),
    "background_jobs": lambda value: f"{value} background jobs" if value else "alone",
    "topology": str,
    "jitter": lambda value: f"jitter {value:g}" if value else "without jitter",
    "jitter_per": lambda value: f"jitter by {value}",
    "split": lambda value: f"{value} block{'s' * (value != 1)}",
    "floor": lambda value: f"floor {value:g}",
    "nics": lambda value: f"{value} port{'s' * (value != 1)} a node",
    "weight_group": lambda value: f"groups of {value}",
    "group": lambda value: f"groups of {value}",
    "codec_group": lambda value: f"groups of {value}",
    "values": lambda value: f"{value} values",
    "scales": lambda value: f"scales in {str(value).upper()}" if value == "bf16" else f"{value} scales",
    "rounding": lambda value: f"{value} rounding",
    "compute_tflops": lambda value: f"computing at {value:g} TFLOP/s",
    "overlap_enabled": lambda value: f"sent {'during' if value else 'after'} backward",
    "lr": lambda value: f"learning rate {value:g}",
    "straggler_share": lambda value: f"stragglers {100 * value:g} %" if value else "no stragglers",
    "compute_s": lambda value: f"computing {value:g} s",
    "gradients": lambda value: _saved(str(value)),
    "case": lambda value: _case(str(value)),
    "sweep": lambda value: "",
    "task": lambda value: "",
}
"""Values of other axes in words, by the axis' last name."""


def _saved(value: str) -> str:
    """The words for files that a run has saved: `gradients of step 140` for `training:step140`, and
    `gradients of steps 140–149` for `training:step140-149`."""
    row = re.fullmatch(r"step(\d+)-(\d+)", value.rpartition(":")[2])
    if row is not None:
        return f"gradients of steps {row[1]}–{row[2]}"
    kept = re.fullmatch(r"(step|weights)(\d+)", value.rpartition(":")[2])
    if kept is None:
        return f"gradients of {value.rpartition(':')[2]}"
    return f"{'weights' if kept[1] == 'weights' else 'gradients'} of step {kept[2]}"


OPERATIONS = {
    "linear.quantize.4": "int4 quantization",
    "linear.dequantize.4": "int4 dequantization",
    "linear.quantize_hadamard.4": "int4 quantization with the Hadamard transform",
    "linear.dequantize_hadamard.4": "int4 dequantization with the Hadamard transform",
    "edgc.bits.1": "entropy of all coordinates",
    "edgc.bits.4": "entropy of every fourth coordinate",
}
"""Benchmarked operations that claims are on; others are written as they are."""


def _case(value: str) -> str:
    """One of several parts of a run: a benchmarked operation with the values it takes, a phase of a rate."""
    measured = re.fullmatch(r"(\S+) (\w+) (\d+) (\w+) (\d+)", value)
    if measured:
        threads = f"{measured[5]} thread{'s' * (measured[5] != '1')}"
        operation = OPERATIONS.get(measured[1], measured[1])
        return f"{operation}, {int(measured[3]) / 1e6:.3g} million values in {measured[2]}, {threads}"
    phase = re.fullmatch(r"([\d.]+) (from [\d.]+ s)", value)
    return f"rate × {phase[1]} {phase[2]}" if phase else value


def name_of(axis: str, value: Any) -> str:
    """The value of an axis in words: `DynamiQ`, `5 bits`, `100 Mbit/s`; of one without words `key value`."""
    axis = axis.rpartition(".")[2]
    if axis in NAMES:
        return NAMES[axis].get(str(value), _by_size(str(value)) if axis == "model" else str(value))
    return WORDS[axis](value) if axis in WORDS else f"{axis.replace('_', ' ')} {_plain(value)}"


def _by_size(model: str) -> str:
    """The name of a model such as `gpt_2_5b`: `GPT-2.5B`."""
    family, _, size = model.partition("_")
    shown = size.replace("_", ".")
    return f"{family.upper()}-{shown.upper()}" if shown[:1].isdigit() else model.replace("_", " ")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


FIRST = ("codec", "experiment", "scheme")
"""Axes that say what is compared; their names come first."""


def names_of(cells: Mapping[str, Any], keys: Sequence[str] | None = None) -> str:
    """The values of axes in words, those that say what is compared first: `DynamiQ, 5 bits, 8 workers`."""
    chosen = [key for key in cells if keys is None or key in keys]
    ordered = sorted(chosen, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    return ", ".join(filter(None, (name_of(key, cells[key]) for key in ordered)))
