"""Codecs, topologies and parallelisms from outside, by `module:name` and by entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gradwire.codecs import plugins
from gradwire.codecs.plugins import ALLOWED, ENTRY_POINTS
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.config.compose import compose
from gradwire.harness.config.manual import choices_table
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate
from gradwire.harness.doctor.software import plugins as announced_on_the_page
from gradwire.harness.record.provenance import provenance
from gradwire.harness.runtime.errors import ConfigError

OUTSIDE = """
from dataclasses import dataclass, field
import gradwire
from gradwire.codecs.exact import BF16
from gradwire.harness.parallel.registry import PARALLELISMS
from gradwire.harness.comm.topology.ring import ring

@dataclass
class Mine(BF16):
    name: str = "mine"
    strength: float = 0.5

@dataclass
class Nameless(gradwire.HopCodec):
    strength: float = 0.5

@dataclass
class Bare:
    name: str = "bare"

@dataclass
class Odd(BF16):
    name: str = "odd"
    strength: object = field(default_factory=object)

def short(size): return ring(size + 1)
def wrong(size): raise KeyError("its own words")
replicas = PARALLELISMS["ddp"]
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `outside_<n>` in the working directory, whose name no other test uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(ALLOWED, "")
    path = tmp_path / f"outside_{abs(hash(tmp_path))}.py"
    path.write_text(OUTSIDE)
    yield path
    sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("already", [None, "", "here"])
@pytest.mark.parametrize("checkout", [False, True])
def test_the_working_directory_is_searched_last_and_once(
    already: str | None, checkout: bool, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is a checkout's root, whose packages have other names when installed."""
    here, name = str(module.parent), f"{module.stem}:Mine"
    monkeypatch.setenv(ALLOWED, name)
    if checkout:
        (module.parent / "codecs").mkdir()
        (module.parent / "codecs" / "registry.py").touch()
    sys.path[:] = [each for each in sys.path if each not in ("", here)]
    if already is not None:
        sys.path.insert(0, here if already == "here" else "")
    before = list(sys.path)
    for _ in range(2):
        if checkout and already is None:
            with pytest.raises(ValueError, match=f"there is no module {module.stem} in "):
                plugins.load("codec", name)
        else:
            plugins.load("codec", name)
        assert sys.path == before + [here] * (already is None and not checkout)


def test_a_codec_with_its_own_fields(module: Path) -> None:
    name = f"{module.stem}:Mine"
    config = validate(compose(["size=tiny", f"codec={name}", "codec.strength=0.25", "codec.exclude=[a]"]))
    assert config.codec == {
        "name": name,
        "exclude": ["a"],
        "ef": False,
        "decisions": None,
        "strength": 0.25,
    }
    assert f"-{module.stem}.Mine-ring-s0-" in run_name(config)
    assert provenance(config.mapping())["versions"][name].startswith("source ")
    assert name not in provenance()["versions"]


def test_another_source_is_another_run(module: Path) -> None:
    arguments = ["size=tiny", f"codec={module.stem}:Mine"]
    before = run_name(validate(compose(arguments)))
    assert run_name(validate(compose(arguments))) == before
    module.write_text(f"{OUTSIDE}\n# changed")
    assert run_name(validate(compose(arguments))) != before


def test_a_topology_and_a_parallelism(module: Path) -> None:
    config = validate(
        compose(["size=tiny", "topology=backwards:backwards", f"parallel={module.stem}:replicas"])
    )
    assert config.topology.name == "backwards:backwards"
    assert config.parallel.name == f"{module.stem}:replicas" and config.parallel.bucket_cap_mb == 25


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("codec=nowhere_at_all:Mine", "there is no module nowhere_at_all in "),
        ("topology=nowhere_at_all:mine", "set PYTHONPATH=<the folder that holds nowhere_at_all>, or install"),
        ("codec=$:Missing", "has no Missing; it has "),
        ("codec=$:short", "is not a codec: it must be a class decorated with @dataclass"),
        ("codec=$:Nameless", "is not a codec: its dataclass needs a field `name"),
        ("codec=$:Bare", "derived from gradwire.Codec or gradwire.HopCodec"),
        ("codec=$:Odd", "strength"),
        ("codec=$:Mine codec.strenth=1", "did you mean codec.strength"),
        ("codec=$:Mine codec.strength=much", "choose a number"),
        ("topology=$:Mine", "is not a topology: it must be a function"),
        ("topology=$:short", "cluster.workers=4: its schedule is for 5 ranks"),
        ("topology=$:wrong", "KeyError: 'its own words'"),
        ("topology=os:getcwd", "TypeError: "),
        ("parallel=$:Mine", "is not a parallelism: it must be a ParallelKind"),
        ("codec=$-:Mine", "is unknown; choose one of"),
    ],
)
def test_what_is_refused(argument: str, said: str, module: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(compose(["size=tiny", *argument.replace("$", module.stem).split()]))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('its own\\nwords')", "RuntimeError: its own words"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 +", "SyntaxError: "),
    ],
)
def test_an_import_that_fails_is_quoted(source: str, said: str, module: Path) -> None:
    module.write_text(source)
    with pytest.raises(ConfigError) as refused:
        compose([f"codec={module.stem}:Mine"])
    assert f"codec={module.stem}:Mine: importing {module.stem} failed: {said}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_a_file_names_is_imported(module: Path) -> None:
    """Names in a run directory's configuration get as far as these functions."""
    module.write_text("raise AssertionError('imported')")
    for make in (lambda name: make_codec(name), lambda name: make_schedule(name, 4)):
        with pytest.raises(ValueError, match="no file may choose what is imported") as refused:
            make(f"{module.stem}:Mine")
        assert "\n" not in str(refused.value)
    read = compose(["size=tiny"])
    read.codec.name = f"{module.stem}:Mine"
    with pytest.raises(ConfigError, match="no file may choose what is imported"):
        validate(read)
    assert module.stem not in sys.modules


def test_entry_points(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("halfway", f"{module.stem}:Mine", ENTRY_POINTS["codec"])
    monkeypatch.setattr(
        plugins.metadata, "entry_points", lambda group: [point] if group == ENTRY_POINTS["codec"] else []
    )
    plugins.announced.cache_clear()
    try:
        with pytest.raises(ValueError, match="no file may choose"):
            make_codec("halfway")
        config = validate(compose(["size=tiny", "codec=halfway", "codec.strength=2"]))
        assert (config.codec["name"], config.codec["strength"]) == ("halfway", 2)
        assert "halfway" in provenance(config.mapping())["versions"]
        assert f"plug-in {module.stem}:Mine" in choices_table(Path(__file__).parents[3] / "conf")
        assert [finding.name for finding in announced_on_the_page()] == ["codec=halfway"]
    finally:
        plugins.announced.cache_clear()
