"""Golden losses: what runs compute is what it was, to the last bit. `cases.py` has the runs.

On a machine whose PyTorch or processor has no record yet, the commit that the records name runs there too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import record
import records
from cases import CASES, SHORT
from commanded import undrawn
from commits import NoHistoryError, run_at
from machine import this_machine
from pool import Workers
from records import AGAIN, LOG, Record, differences, record_of
from runs import Figures, run_case
from torch import Tensor

from gradwire.codecs.registry import codec_classes
from gradwire.harness.comm.topology.registry import TOPOLOGIES
from gradwire.harness.config.compose import compose
from gradwire.harness.models.families import FAMILIES
from gradwire.harness.parallel.update import Updater

AS_A_COMMAND = ("dynamiq pieces real", "mxfp8 resumed")
PLANTED = "fp32 ring"

SHOWN = 12
"""Differences of a case that a failure prints."""


@pytest.fixture(scope="module")
def expected(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Figures | str]:
    """The figures of each case on this machine, or why there are none. What it has no record of runs at the
    commit of the newest record, if a test of this session needs it."""
    machine = this_machine()
    record = record_of(machine)
    known: Mapping[str, Figures] = {} if record is None else record.cases
    newest = records.records_with_most(records.records())
    compared = {*AS_A_COMMAND, PLANTED}
    compared |= {name for item in request.session.items for name in CASES if f"[{name}]" in item.name}
    unknown = {name: CASES[name] for name in newest.cases if name in compared and name not in known}
    if not unknown:
        return known
    try:
        found = dict(run_at(newest.commit, unknown, tmp_path_factory.mktemp("base"), as_virtual=True))
    except NoHistoryError as error:
        pytest.skip(
            f"no record of {machine.key}, and commit {newest.commit} cannot run here instead: {error}"
        )
    return {**known, **found}


@pytest.fixture(autouse=True)
def _undrawn() -> Iterator[None]:
    with undrawn():
        yield


def assert_same(name: str, before: Figures, after: Figures) -> None:
    found = differences(name, before, after)
    more = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    assert not found, "\n".join(
        [f"golden figures differ on {this_machine().key}", *found[:SHOWN], *more, f"if they may: {AGAIN}"]
    )


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_every_figure_is_as_recorded(
    name: str, expected: Mapping[str, Figures | str], workers: Workers, tmp_path: Path
) -> None:
    assert name in expected, f"golden case {name!r} is new: {AGAIN}"
    before = expected[name]
    assert not isinstance(before, str), f"{name} at the commit of the records: {before}"
    assert_same(name, before, run_case(CASES[name], tmp_path, workers))


@pytest.mark.full
def test_the_commit_of_the_records_gives_them_as_a_command(
    expected: Mapping[str, Figures | str], tmp_path: Path
) -> None:
    """A machine without a record relies on this: another world, without a stop, gives the same figures."""
    chosen = {name: CASES[name] for name in AS_A_COMMAND}
    commit = records.records_with_most(records.records()).commit
    try:
        found = dict(run_at(commit, chosen, tmp_path, as_virtual=True))
    except NoHistoryError as error:
        pytest.skip(str(error))
    for name, figures in found.items():
        assert not isinstance(figures, str), figures
        assert_same(name, expected[name], figures)  # type: ignore[arg-type]


def test_a_planted_change_is_seen(
    expected: Mapping[str, Figures | str], workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One coordinate of the mean gradient is a hundredth larger."""
    apply = Updater.apply

    def planted(self: Updater, learning_rate: float) -> Tensor:
        first = next(p for group in self.optimizer.param_groups for p in group["params"])
        first.grad.view(-1)[first.grad.abs().argmax()] *= 1.01
        return apply(self, learning_rate)

    monkeypatch.setattr(Updater, "apply", planted)
    after, before = run_case(CASES[PLANTED], tmp_path, workers), expected[PLANTED]
    with pytest.raises(AssertionError) as seen:
        assert_same(PLANTED, before, after)  # type: ignore[arg-type]
    name = "step 0 grad_norm"
    assert f"{PLANTED}: {name}: {before[name]!r} → {after[name]!r}" in str(seen.value)  # type: ignore[index]
    assert AGAIN in str(seen.value)


def test_one_bit_of_one_figure_is_seen() -> None:
    one = records.records()[0]
    for name, figures in one.cases.items():
        loss = figures["step 3 loss"]
        (bits,) = struct.unpack("<q", struct.pack("<d", loss))
        (other,) = struct.unpack("<d", struct.pack("<q", bits ^ 1))
        assert differences(name, figures, figures | {"step 3 loss": other}) == [
            f"{name}: step 3 loss: {loss!r} → {other!r}"
        ]


def test_the_cases_cover_codecs_topologies_and_families() -> None:
    overrides = {override for case in CASES.values() for override in case.overrides}
    own = {name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")}
    assert {f"codec={name}" for name in own} <= overrides
    assert {f"topology={name}" for name in TOPOLOGIES if name != "ring"} <= overrides
    models = [override for override in overrides if override.startswith("model=")]
    assert set(FAMILIES) == {compose([*SHORT, *model]).model.family for model in [(), *zip(models)]}


def test_records_have_every_case_and_the_log_says_why() -> None:
    """The newest one does. Another machine's may lack what came later, until it is recorded there."""
    log, newest = LOG.read_text(), records.records_with_most(records.records())
    assert set(newest.cases) == set(CASES), AGAIN
    for one in records.records():
        assert one.path.name in [path.name for path in records.FOLDER.iterdir()]
        assert set(one.cases) <= set(CASES), AGAIN
        assert f"  {one.machine.key}  at {one.commit}\nreason: " in log


def test_recording_demands_a_reason_and_keeps_it_with_each_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path / "records")
    monkeypatch.setattr(records, "LOG", tmp_path / "log.txt")
    monkeypatch.setattr(record, "git", lambda *_: b"abc\n")
    monkeypatch.setattr(record, "differs", lambda *_: False)

    def recorded(figures: Figures, *arguments: str) -> str:
        monkeypatch.setattr(record, "run_here", lambda: {"one": figures})
        monkeypatch.setattr("sys.argv", ["record.py", *arguments])
        assert record.main() == 0
        return (tmp_path / "log.txt").read_text()

    for refused in ((), ("--reason", " ")):
        with pytest.raises(SystemExit):
            recorded({}, *refused)
    assert "--reason is empty: say why" in capsys.readouterr().err
    first = recorded({"step 0 loss": 0.1, "weights": "a"}, "--reason", "the first")
    assert "reason: the first\n  one: new case\n" in first
    assert recorded({"step 0 loss": 0.1, "weights": "a"}, "--reason", "nothing changed") == first
    both = recorded({"step 0 loss": 0.1 + 2**-56, "step 0 lr": 1.0}, "--reason", "another sum")
    assert both.startswith(first)
    assert both.removeprefix(first).split("\n")[1:5] == [
        "reason: another sum",
        "  one: step 0 loss: 0.1 → 0.10000000000000002",
        '  one: weights: "a" → absent',
        "  one: step 0 lr: absent → 1.0",
    ]
    kept = record_of(this_machine())
    assert kept == Record(this_machine(), "abc", {"one": {"step 0 loss": 0.1 + 2**-56, "step 0 lr": 1.0}})
