"""One file per paper: its models and how it trains them; and all of them, by the name of their
`conf/model/<name>.yaml`.

Where a paper leaves something open, the docstring says so and states the reading taken here.
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.harness.models.papers import aqgb, dynamiq, edgc, gpt2, sdp4bit
from gradwire.harness.models.settings import ModelConfig

PRESETS: dict[str, Callable[[], ModelConfig]] = {
    preset.__name__: preset
    for preset in (
        gpt2.gpt2,
        gpt2.gpt2_medium,
        dynamiq.llama1b,
        dynamiq.llama1b_mmlu,
        dynamiq.gemma1b,
        dynamiq.bert_large,
        dynamiq.tinybert,
        dynamiq.tinybert_glue,
        sdp4bit.gpt_125m,
        sdp4bit.gpt_350m,
        sdp4bit.gpt_1_3b,
        sdp4bit.gpt_2_7b,
        sdp4bit.gpt_6_7b,
        sdp4bit.gpt_13b,
        sdp4bit.gpt_18b,
        edgc.gpt_345m,
        edgc.gpt_2_5b,
        edgc.gpt_12_1b,
        edgc.bert_345m,
        aqgb.resnet50,
        aqgb.resnet_small,
        aqgb.resnext101,
    )
}
