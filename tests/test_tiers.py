"""The fast tier is a sample drawn by commit; with the full one it is all tests, each once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiers
from item_costs import CostRecorder

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.parametrize("n", range(1, 65))
@pytest.mark.parametrize("codec", ["fp32", "dynamiq", "tfp"])
@pytest.mark.parametrize("options", [{}, {"ef": True}])
def test_grid(n, codec, options):
    pass

@pytest.mark.parametrize("seed", range(120))
def test_seeds(seed):
    pass

@pytest.mark.whole
@pytest.mark.parametrize("seed", range(60))
def test_whole(seed):
    pass

@pytest.mark.every_value
@pytest.mark.parametrize("codec", range(20))
@pytest.mark.parametrize("topology", range(3))
def test_values(codec, topology):
    pass

@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_full(seed):
    pass

def test_alone():
    pass

@pytest.mark.parametrize("way", ["one", "other"])
def test_costly(way):
    pass

""" + "\n".join(f"def test_turn{number}():\n    pass\n" for number in range(24))

CONFTEST = """
import pytest, tiers

def pytest_configure(config):
    config.pluginmanager.register(tiers)
"""

INI = """
[pytest]
addopts = -p no:cacheprovider -m 'not full'
markers =
    full:
    whole:
    every_value:
"""

COSTS = {
    "test_it.py::test_grid": 0.05,
    "test_it.py::test_whole": 1.0,
    "test_it.py::test_values": 0.5,
    "test_it.py::test_costly": 0.7,
    **{f"test_it.py::test_turn{number}": 1.0 for number in range(24)},
}

Collect = Callable[..., list[str]]


@pytest.fixture
def collect(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Collect:
    """`collect(seed, *arguments)`: the names of the tests that pytest selects."""
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(CONFTEST)
    pytester.makeini(INI)
    costs = pytester.path / "costs.txt"
    costs.write_text("".join(f"{seconds} {function}\n" for function, seconds in COSTS.items()))
    monkeypatch.setattr(tiers, "COSTS", costs)

    def names(seed: str, *arguments: str) -> list[str]:
        monkeypatch.setenv(tiers.VARIABLE, seed)
        run = pytester.inline_run("--collect-only", "-qq", "--strict-markers", *arguments)
        return [item.name for item in run.getcalls("pytest_collection_finish")[0].session.items]

    return names


def of(function: str, names: list[str]) -> list[str]:
    return [name for name in names if name.split("[")[0] == function]


def test_both_tiers_are_all_tests_each_once(collect: Collect) -> None:
    fast, full, every = collect("a"), collect("a", "-m", "full"), collect("a", "-m", "")
    assert sorted(fast + full) == sorted(every) and len(set(every)) == len(every)
    assert len(of("test_grid", every)) == 384 and len(of("test_grid", fast)) < 20
    assert of("test_full", full) == of("test_full", every)


def test_the_same_sample_is_drawn_again_and_other_commits_draw_others(collect: Collect) -> None:
    drawn = [collect(seed) for seed in ("a", "a", "b")]
    assert drawn[0] == drawn[1] != drawn[2]
    for function in ("test_grid", "test_seeds"):
        first, other = set(of(function, drawn[0])), set(of(function, drawn[2]))
        assert len(first & other) < len(first) / 2


def test_corners_are_always_drawn(collect: Collect) -> None:
    for seed in "ab":
        drawn = [name[len("test_grid[") : -1].split("-") for name in of("test_grid", collect(seed))]
        options, codecs, sizes = (set(values) for values in zip(*drawn, strict=True))
        assert options == {"options0", "options1"} and {"fp32", "tfp"} <= codecs
        assert {"1", "2", "3", "64"} <= sizes
        assert any(int(n) % 2 and int(n) > 3 for n in sizes) and sizes & {"4", "8", "16", "32"}
        assert {"test_seeds[0]", "test_seeds[119]"} <= set(collect(seed))
        assert of("test_costly", collect(seed)) == ["test_costly[one]", "test_costly[other]"]


def test_markers_keep_all_items_or_each_value(collect: Collect) -> None:
    names = collect("a")
    assert len(of("test_whole", names)) == 60
    drawn = [name[len("test_values[") : -1].split("-") for name in of("test_values", names)]
    topologies, codecs = (set(values) for values in zip(*drawn, strict=True))
    assert len(topologies) == 3 and len(codecs) == 20 == len(drawn)


def test_costly_tests_take_turns(collect: Collect) -> None:
    turns = [{name for name in collect(seed) if name.startswith("test_turn")} for seed in "abcdef"]
    assert all(3 <= len(names) <= 21 for names in turns)
    assert len(set.union(*turns)) > 20
    assert "test_alone" in collect("a")


def test_long_files_come_first(collect: Collect, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_last="def test_long():\n    pass\n")
    assert collect("a", "-m", "")[-1] == "test_long"
    with tiers.COSTS.open("a") as file:
        file.write("999 test_last.py::test_long\n")
    assert collect("a", "-m", "")[0] == "test_long"


def test_what_is_named_is_taken(collect: Collect) -> None:
    assert len(collect("a", "test_it.py::test_grid")) == 384
    assert collect("a", "test_it.py::test_seeds[77]") == ["test_seeds[77]"]
    assert len(collect("a", "test_it.py::test_full")) == 2
    assert collect("a", "test_it.py::test_full", "-m", "whole") == []


def test_a_word_selects_from_the_sample(collect: Collect) -> None:
    assert collect("a", "-k", "grid") == of("test_grid", collect("a"))


def test_the_seed_is_given_or_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tiers.VARIABLE, raising=False)
    assert tiers.sampling_seed(tmp_path) == "0", "no repository"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tiers.sampling_seed(Path(__file__).parent) == "0", "no git"
    monkeypatch.setenv(tiers.VARIABLE, "abc")
    assert tiers.sampling_seed(tmp_path) == "abc"


def test_the_summary_says_how_to_draw_again(
    collect: Collect, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tiers.VARIABLE, "1234abcd")
    result = pytester.runpytest_inprocess("-q", "-k", "alone or costly")
    result.stdout.fnmatch_lines(["*GRADWIRE_SAMPLE=1234abcd*", "3 passed*"])


def test_costs_of_what_is_sampled_are_recorded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import time
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_busy(number):
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass

        def test_quick():
            pass
        """
    )
    path = pytester.path / "costs.txt"
    pytester.inline_run("-p", "no:cacheprovider", plugins=[CostRecorder(path)])
    costs = tiers.read_costs(path)
    assert costs.keys() == {"test_it.py::test_busy"} and costs["test_it.py::test_busy"] >= 0.2


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "gpu").glob("*.py")), ids=lambda path: path.stem
)
def test_tests_of_the_gpu_can_be_imported_without_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not collected where they would be skipped."""
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    importlib.import_module(path.stem)
