"""Hydra's errors in one line: with the override that caused them, or the key if a file did."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import ValidationError

from gradwire.harness.config.explain import explain
from gradwire.harness.config.overrides import parse


@pytest.mark.parametrize(("word", "kind"), [("Integer", "whole number"), ("Float", "number")])
def test_a_value_of_another_type_is_named_by_its_override_or_its_key(word: str, kind: str) -> None:
    error: Any = ValidationError(f"Value 'many' of type 'str' could not be converted to {word}")
    error.full_key = "train.steps"
    expected = f"train.steps has the wrong type, expected {kind}; write train.steps=<{kind}>"
    overrides = parse(["seed=0", "train.steps=many", "train.lr=1"])
    assert str(explain(error, overrides, {})) == f"train.steps=many: {expected}"
    others = [overrides[0], overrides[2]]  # a file set it
    assert str(explain(error, others, {})) == f"train.steps: {expected}"


def test_any_other_error_follows_the_override_that_it_quotes() -> None:
    error = ValueError("cannot work with 'train.lr'\nmore lines")
    words = "cannot work with 'train.lr' more lines"
    assert str(explain(error, parse(["seed=0", "train.lr=1"]), {})) == f"train.lr=1: {words}"
    assert str(explain(error, parse(["seed=0"]), {})) == words
