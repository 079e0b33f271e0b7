"""A sweep is a union of products; the command line multiplies it and wins over it."""

from __future__ import annotations

import pytest

from gradwire.harness.config.compose import parse
from gradwire.harness.config.declared import Declared, declared
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.cells import SweepCell, expand, override_text, swept_keys

CASES = Declared(
    {
        "tiny": [
            {"codec": "bf16", "seed": [0, 1, 2]},
            {"codec": "dynamiq", "codec.bits": [3, 4], "seed": [0, 1, 2]},
        ],
        "small": [{"codec": "fp32"}],
    }
)


def values(cells: list[SweepCell]) -> list[tuple[str | None, ...]]:
    return [tuple(cell.swept.get(key) for key in ("codec", "codec.bits", "seed")) for cell in cells]


def test_a_union_of_products() -> None:
    cells = expand(CASES, "tiny", ["size=tiny"])
    bf16 = [("bf16", None, seed) for seed in "012"]
    dynamiq = [("dynamiq", bits, seed) for bits in "34" for seed in "012"]
    assert values(cells) == bf16 + dynamiq
    assert all(cell.overrides[0] == "size=tiny" for cell in cells)
    assert swept_keys(cells) == ["codec", "seed", "codec.bits"]


def test_products_of_the_command_line() -> None:
    cells = expand(
        Declared(), "tiny", ["codec=bf16,dynamiq", "topology=ring,butterfly", "seed=range(0,3)", "size=tiny"]
    )
    assert len({cell.overrides for cell in cells}) == 2 * 2 * 3
    assert cells[0].overrides == ("size=tiny", "codec=bf16", "topology=ring", "seed=0")
    assert cells[0].label == "codec=bf16 topology=ring seed=0"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=range(0,10,0)", "is not a finite range"),
        ("seed=range(0,10,-1)", "has no values"),
        ("seed=range(5,5)", "has no values"),
        ("seed=shuffle(range(0,3,0))", "is not a finite range"),
        ("seed=range(0,nan)", "is not a finite range"),
        ("seed=range(0,inf)", "is not a finite range"),
        ("seed=range(0,1e300,1e-300)", "is not a finite range"),
        ("seed=range(0,1e9,1e-9)", "has more values than 10000"),
        (f"seed=range(0,{10**12})", "has more values than 10000"),
        ("codec=range(0,0)", "has no values"),
        ("codec=glob(zz*)", "matches no choice; choose from "),
        ("seed=glob(*)", "is for groups; use choice(...) or range(...)"),
        ("seed=interval(0,1)", "has no list of values; use choice(...)"),
    ],
)
def test_values_without_a_number_or_an_end_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        expand(Declared(), "tiny", ["size=tiny", override])
    assert str(refused.value).startswith(override) and said in str(refused.value)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 400


def test_a_pattern_takes_the_choices_that_match() -> None:
    cells = expand(Declared(), "tiny", ["size=tiny", "codec=glob(mx*)"])
    assert [cell.swept["codec"] for cell in cells] == ["mxfp4", "mxfp6", "mxfp8"]


def test_a_case_with_an_empty_list_has_no_runs() -> None:
    with pytest.raises(ConfigError, match="the sweep has no runs: a key of its cases has an empty list"):
        expand(Declared({"tiny": [{"codec": []}]}), "tiny", ["size=tiny"])


def test_a_fixed_value_replaces_a_cases_values() -> None:
    assert values(expand(CASES, "tiny", ["seed=7"])) == [
        ("bf16", None, None),
        ("dynamiq", "3", None),
        ("dynamiq", "4", None),
    ]


def test_another_choice_drops_the_cases_fields_of_that_group() -> None:
    bf16 = expand(CASES, "tiny", ["codec=bf16"])
    assert values(bf16) == [(None, None, seed) for seed in "012"]
    dynamiq = expand(CASES, "tiny", ["codec=dynamiq", "seed=0"])
    assert [cell.swept for cell in dynamiq] == [{}, {"codec.bits": "3"}, {"codec.bits": "4"}]


def test_sweeps_on_the_command_line_multiply_the_cases() -> None:
    cells = expand(CASES, "tiny", ["topology=ring,butterfly"])
    assert len(cells) == 2 * 9
    assert len(expand(CASES, "tiny", ["seed=5,6"])) == 3 * 2  # and replace what they name


def test_a_key_that_a_choice_does_not_have_is_dropped_there() -> None:
    cells = expand(
        Declared(), "tiny", ["size=tiny", "codec=bf16,dynamiq,mxfp4", "codec.bits=3,4", "codec.ef=true"]
    )
    assert [cell.swept for cell in cells] == [
        {"codec": "bf16"},
        {"codec": "dynamiq", "codec.bits": "3"},
        {"codec": "dynamiq", "codec.bits": "4"},
        {"codec": "mxfp4"},
    ]
    assert all("codec.ef=true" in cell.overrides for cell in cells)
    fixed = expand(Declared(), "tiny", ["codec=bf16,dynamiq", "codec.bits=3"])
    assert [cell.overrides for cell in fixed] == [("codec=bf16",), ("codec.bits=3", "codec=dynamiq")]
    nowhere = expand(Declared(), "tiny", ["codec=bf16,fp32", "codec.bits=3,4"])
    assert len(nowhere) == 4, "is refused when it is composed"


def test_a_common_value_is_dropped_where_a_case_chooses_something_without_it() -> None:
    """`shaped` measures its computation. A key that nothing has stays in a cell, which is refused."""
    cases = {"tiny": [{"network": "shaped", "codec": "bf16"}, {"codec": "thc"}]}
    common = {"tiny": {"network": "simulated", "network.compute_s": 0.02, "network.rate_mbit": 100}}
    shaped, simulated = expand(Declared(cases, common), "tiny", [])
    assert shaped.overrides == ("network.rate_mbit=100", "network=shaped", "codec=bf16")
    assert {"network=simulated", "network.compute_s=0.02"} < {*simulated.overrides}
    typing_error = {"tiny": {"network.compute": 0.02}}
    assert any(
        "network.compute=0.02" in each.overrides for each in expand(Declared(cases, typing_error), "tiny", [])
    )


def test_a_size_without_cases_names_the_others() -> None:
    with pytest.raises(ConfigError, match=r"size=paper: .* size=tiny or size=small"):
        expand(CASES, "paper", [])


@pytest.mark.parametrize("malformed", [{"codec": "bf16"}, [], ["codec=bf16"], None])
def test_malformed_cases_are_refused(malformed: object) -> None:
    with pytest.raises(ConfigError, match=r"hydra.sweeper.cases.tiny=.*: choose a list of mappings"):
        declared({"cases": {"tiny": malformed}})


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -2.5, 1e-5, [1, 2], ["a b", 1.5], {"a": 1, "b": [2]}),
        *("ring", "", "a b", "it's", "a,b", "null", "3", "/tmp/x y", "back\\slash", "range(0,3)"),
    ],
)
def test_values_survive_the_override_grammar(value: object) -> None:
    (override,) = parse([f"key={override_text(value)}"])
    assert override.value() == value
    assert type(override.value()) is type(value)
