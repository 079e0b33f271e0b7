"""Lists among the codecs' options, and the options that every codec has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.config.compose import compose
from gradwire.harness.config.store import choices_with_field
from gradwire.harness.config.validate import validate
from gradwire.harness.record.identity import run_id
from gradwire.harness.runtime.errors import ConfigError

OF_A_BIAS = Layout(("a.bias",), ((8,),), (0,), 8, torch.int64)
"""A bucket that none of these codecs takes, unless its parameter is excluded."""

WithValues = Callable[..., DictConfig]


@pytest.mark.parametrize("codec", ["dynamiq", "mxfp6"])
def test_a_run_can_exclude_parameters(codec: str, with_values: WithValues) -> None:
    config = with_values(f"codec={codec}")
    assert config.codec.exclude == []
    assert make_codec(**validate(config).codec).supports("ring", 2, OF_A_BIAS) is not None
    config.codec.exclude = ["*.bias"]
    made = make_codec(**validate(config).codec)
    assert made.supports("ring", 2, OF_A_BIAS) is None
    assert made.name == codec


def test_common_options_belong_to_all_codecs_and_own_ones_to_theirs() -> None:
    own = {name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")}
    for option in ("exclude", "ef"):
        assert own <= set(choices_with_field("codec", option))
    assert set(choices_with_field("codec", "mu_minimum")) == {"mxfp8", "mxfp6", "mxfp4"}


def test_lists_are_given_on_the_command_line() -> None:
    config = compose(
        ["codec.exclude=[*embed*,*.bias]", "codec.widths=[1,4,2]", "codec.bits=3.5", "size=tiny"]
    )
    assert OmegaConf.to_container(config.codec.exclude) == ["*embed*", "*.bias"]
    assert OmegaConf.to_container(config.codec.widths) == [1, 4, 2]
    quoted = compose(['codec.exclude=["*.bias"]'])
    assert quoted.codec.exclude == ["*.bias"]
    assert quoted.codec.widths == [2, 4, 8]


def test_what_is_excluded_and_which_widths_there_are_make_another_run(with_values: WithValues) -> None:
    settings = ((), ("codec.exclude=[*.bias]",), ("codec.exclude=[*.weight]",), ("codec.widths=[2,8]",))
    assert len({run_id(validate(with_values(*each))) for each in settings}) == 4
    assert run_id(validate(with_values("codec.exclude=[]"))) == run_id(validate(with_values()))


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("codec.exclude=[*.bias,'']", ["codec.exclude=[*.bias, ]", "a list of texts"]),
        ("codec.widths=[2,7]", ["codec.widths=[2, 7]", "1, 2, 3, 4, 5, 6, 8, 16"]),
        ("codec.widths=[1,2]", ["codec.bits=5.0", "1.6875 to 2.6875"]),
        ("codec.allocation=quick", ["codec.allocation=quick", "fast, exact"]),
    ],
)
def test_bad_options_are_refused_in_one_line(given: str, parts: list[str], with_values: WithValues) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(with_values(given))
    assert "\n" not in str(refused.value)
    assert all(part in str(refused.value) for part in parts)


@pytest.mark.parametrize("given", ["codec.exclude=*.bias", "codec.widths=[many]"])
def test_what_is_no_list_is_refused_while_composing(given: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["size=tiny", given])
    assert given.partition("=")[0] in str(refused.value)


def test_a_composed_codec_is_the_class_with_its_fields(with_values: WithValues) -> None:
    made = make_codec(**validate(with_values("codec.widths=[1,2,4]", "codec.bits=4")).codec)
    assert isinstance(made, DynamiQ)
    assert (made.widths, made.bits, made.allocation) == ([1, 2, 4], 4.0, "fast")
