"""Claims: predicates, what is refused, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sweep_records import cell, record

from gradwire.harness.report.claims.claim import Basis, Claim, Claims, Predicate
from gradwire.harness.report.claims.effects import (
    above,
    at_least,
    at_most,
    below,
    close,
    every,
    falls,
    near,
    rises,
    spared,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.claims.fits import exponent, line_error
from gradwire.harness.report.claims.known_sweeps import KnownSweep
from gradwire.harness.report.claims.verdict import Reason, Verdict, Word, holding, judge
from gradwire.harness.report.evaluation import ClaimError, MissingError, SeedFigure
from gradwire.harness.report.reference import COLUMNS, Reference
from gradwire.harness.report.sweep_record import SweepRecord

AXES = ("model", "codec", "codec.bits")
ERRORS = {3: 0.08, 4: 0.02, 5: 0.004, 6: 0.001}
SPEEDS = {3: 9.0, 4: 8.0, 5: 7.0, 6: 6.0}


def bits(model: str = "llama1b", seeds: Sequence[int] = (0, 1, 2), size: str = "small") -> SweepRecord:
    """Bit budgets next to BF16 and MXFP8; every seed makes errors a little larger."""
    rows = []
    curves = {}
    for seed in seeds:
        more = 1 + seed / 100
        for count, error in ERRORS.items():
            own = {"model": model, "codec": "dynamiq", "codec.bits": count}
            rows.append((own, seed, {"vnmse": error * more, "rounds_per_second": SPEEDS[count]}))
        for codec, error in (("bf16", 0.0), ("mxfp8", 0.005)):
            own = {"model": model, "codec": codec, "codec.bits": None}
            rows.append((own, seed, {"vnmse": error * more, "rounds_per_second": 5.0, "final_metric": 10.0}))
            label = f"model={model} codec={codec} seed={seed}"
            slow = 2.0 if codec == "bf16" else 1.0
            curves[label] = [(0, slow, 20.0), (10, slow * 2 + seed, 10.4), (20, slow * 4, 10.0)]
        curves[f"model={model} codec=dynamiq codec.bits=3 seed={seed}"] = [(0, 1.0, 20.0), (20, 3.0, 12.0)]
    rows = [(own, seed, {"final_metric": 12.0} | found) for own, seed, found in rows]
    return record(AXES, rows, curves=curves, size=size, name="budgets")


@pytest.fixture
def printed(tmp_path: Path) -> Reference:
    folder = tmp_path / "reference" / "paper"
    folder.mkdir(parents=True)
    rows = ["3b,vNMSE,0.016", "5b,vNMSE,0.00096", "5b,throughput,2.6", "all,share,<1", "6b,vNMSE,0.00059"]
    lines = [f"paper,Table 4,,,{row.split(',')[0]},,{','.join(row.split(',')[1:])},," for row in rows]
    (folder / "table4.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return Reference(tmp_path / "reference")


def holds(predicate: Predicate, reference: Reference | None = None, **records: SweepRecord) -> bool:
    return holding(
        predicate(Evidence(records or {"budgets": bits()}, reference or Reference(Path("none")))), 0.2
    )


def known(*records: SweepRecord) -> dict[str, KnownSweep]:
    found: dict[str, KnownSweep] = {}
    for each in records:
        found.setdefault(each.name, KnownSweep()).add_record(each)
    return found


def verdict(claim: Claim, reference: Reference, *records: SweepRecord) -> Verdict:
    by_name: dict[str, list[SweepRecord]] = {}
    for each in records:
        by_name.setdefault(each.name, []).append(each)
    return judge(claim, by_name, reference, known(bits(), *records))


def claim(predicate: Predicate | None, *, sweeps: tuple[str, ...] = ("budgets",), **about: Any) -> Claim:
    return Claim("P1", "P", "T", "s", sweeps=sweeps, holds=predicate, **about)


FOIL = swap(bits=(3, 6))
"""A foil of the claims below, where they hold."""


def errors(e: Evidence, bits: Any = None) -> SeedFigure:
    """DynamiQ's error at some bits, or MXFP8's."""
    return e.vnmse(codec="mxfp8") if bits is None else e.vnmse(codec="dynamiq", bits=bits)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (lambda e: errors(e, 5) < errors(e), True),
        (lambda e: e.vnmse(codec="dynamiq", codec_bits=5, model="llama1b").median == 0.00404, True),
        (lambda e: e.vnmse(codec="dynamiq", bits=5, workers=4, topology="ring") < 1, True),
        (lambda e: falls(errors(e, b) for b in (3, 4, 5, 6)), True),
        (lambda e: rises(errors(e, b) for b in e.axis("bits")), False),
        (lambda e: rises(errors(e, 5), errors(e), errors(e, 4)), True),
        (lambda e: every(e.vnmse(codec=c) < 0.01 for c in ("bf16", "mxfp8")), True),
        (lambda e: every(errors(e) > 0, errors(e) > 1), False),
        (lambda e: e.axis("codec", "codec.bits", codec="dynamiq")[0] == ("dynamiq", 3), True),
        (lambda e: 2.5 <= errors(e) / errors(e, 6) <= 5.5, True),
        (lambda e: near(errors(e) / errors(e, 6), 5.7, null=1.0), True),
        (lambda e: near(errors(e) / errors(e, 6), 6.1, null=1.0), False),
        (lambda e: near(errors(e), 0.004, null=errors(e, 4)), True),
        (lambda e: at_least(errors(e) / errors(e, 6), 5.01, null=1.0), False),
        (lambda e: at_most(errors(e, 6), 0.0011, null=errors(e)), True),
        (lambda e: spared(errors(e, 6), e.vnmse(codec="bf16"), errors(e, 5)), False),
        (lambda e: spared(errors(e, 6), e.vnmse(codec="bf16"), errors(e, 4)), True),
        (lambda e: close(float(errors(e) / errors(e, 6)), 5, 1e-9), True),
        (lambda e: (1 - 2 * e.vnmse(codec="bf16")).median == 1, True),
        (lambda e: (1 + errors(e)) - errors(e) >= 1 and 3 * errors(e) > errors(e) + 0.0001, True),
        (lambda e: e.vnmse(codec="bf16") / e.vnmse(codec="bf16") < 1, False),
        (lambda e: 1 / e.vnmse(codec="bf16") > 1e300, True),
        (lambda e: below(errors(e, 5), errors(e)), True),
        (lambda e: above(errors(e, 5), errors(e)), False),
        (lambda e: e.tta(1.05, codec="mxfp8").median == 3 and e.tta(1.05, codec="bf16").median == 5, True),
        (lambda e: e.tta(1.05, codec="dynamiq", bits=3).median == math.inf, True),
        (lambda e: (e.tta(1.05, codec="mxfp8") / e.tta(1.05, codec="dynamiq", bits=3)).median == 0, True),
        (lambda e: e.steps_to(1.05, codec="mxfp8").by_seed == {0: 10, 1: 10, 2: 10}, True),
        (lambda e: e.steps_to(1.01, codec="bf16").by_seed == {0: 20, 1: 20, 2: 20}, True),
        (lambda e: e.steps_to(1.05, codec="dynamiq", bits=3).median == math.inf, True),
        (lambda e: e.stays(1.05, codec="mxfp8").low == 1, True),
        (lambda e: e.stays(1.05, codec="dynamiq", bits=3).high == 0, True),
        (lambda e: e.last("perplexity", codec="mxfp8").median == 10, True),
        (lambda e: e.during("perplexity", 0, 0.5, codec="mxfp8").median == 15.2, True),
        (lambda e: e.figure("vnmse", codec="mxfp8") > errors(e, 5).high, True),
        (
            lambda e: below(
                exponent((b, e.rounds_per_second(codec="dynamiq", bits=b)) for b in (3, 6)), -0.5
            ),
            True,
        ),
        (lambda e: line_error((r, 3 * r + 5) for r in (1, 2, 7)) < 1e-12, True),
        (
            lambda e: close(line_error([(1, 10), (2, 16), (3, 20)]), (1 / 30 + 2 / 48 + 1 / 60) / 3, 1e-9),
            True,
        ),
        (lambda e: errors(e).mean == 0.00505 and 0.0001 < errors(e).margin < 0.0002, True),
        (lambda e: (errors(e) / errors(e, 5)).margin < 1e-12, True),
    ],
)
def test_predicates_mean_what_they_say(predicate: Predicate, expected: bool) -> None:
    assert holds(predicate) is expected


def test_printed_figures_can_be_compared(printed: Reference) -> None:
    def error(e: Evidence, method: str) -> float:
        return e.paper("paper/table4", method=method, metric="vNMSE")

    assert holds(lambda e: error(e, "3b") / error(e, "5b") > 16, printed)
    assert not holds(lambda e: falls(error(e, "5b"), error(e, "3b")), printed)


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (lambda e: e.vmse(codec="bf16") > 0, "vmse is not a metric of budgets"),
        (lambda e: e.figure("vmse", codec="bf16") > 0, "vmse is not a metric of budgets"),
        (lambda e: e.vnmse(codek="bf16") > 0, "codek is not an axis; there are"),
        (lambda e: e.vnmse(codec="bf17") > 0, "budgets has no codec=bf17; it has dynamiq, bf16, mxfp8"),
        (lambda e: every(errors(e, b) > 0 for b in (3, 7)), "has no codec.bits=7; it has 3, 4, 5, 6"),
        (lambda e: e.vnmse(sweep="others") > 0, "of the sweep others, which the claim does not name"),
        (lambda e: e.vnmse(codec="dynamiq") > 0, r"leaves codec.bits open"),
        (lambda e: 1 / 0 > 1, r"cannot be computed \(division by zero\)"),
        (lambda e: 1 / "a" > 1, "cannot be computed"),
        (lambda e: e.paper("paper/table9", method="5b") > 1, "paper/table9 is not one of the"),
        (lambda e: e.paper("paper/table4", method="9b") > 1, "has no method=9b; it has 3b, 5b, all, 6b"),
        (lambda e: e.paper("paper/table4", method="5b") > 1, "has 2 figures with"),
        (lambda e: e.paper("paper/table4", metric="share") > 1, "prints '<1' there"),
        (lambda e: e.paper("paper/table4", column="5b") > 1, "has no column column"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(
    predicate: Predicate, said: str, printed: Reference
) -> None:
    with pytest.raises(ClaimError, match=f"claim P1: .*{said}") as refused:
        verdict(claim(predicate), printed, bits())
    assert "\n" not in str(refused.value)


def test_every_condition_is_looked_at(printed: Reference) -> None:
    """A verdict shows all figures, those after the one that decides it, too."""
    found = verdict(claim(lambda e: every(above(errors(e), 1), above(errors(e, 5), 1))), printed, bits())
    assert (found.word, len(found.used)) == (Word.LATE_NOT_REPRODUCED, 2)
    found = verdict(claim(lambda e: every(above(errors(e, b), 1) for b in (3, 4, 5))), printed, bits())
    assert (found.word, len(found.used)) == (Word.LATE_NOT_REPRODUCED, 3)


def test_a_claim_about_an_unknown_sweep_is_refused(printed: Reference) -> None:
    with pytest.raises(ClaimError, match="claim P1: tables is not a sweep; alike are budgets"):
        verdict(claim(lambda e: True, sweeps=("tables",)), printed, bits())


def test_verdicts(printed: Reference) -> None:
    def true(e: Evidence) -> Any:
        return above(errors(e, 3), 0.01)

    about = {"foil": FOIL}
    found = verdict(claim(true, **about), printed, bits())
    assert (found.word, found.size, found.seeds) == (Word.LATE_REPRODUCED, "small", [0, 1, 2])
    assert (found.commits, found.kinds) == (["1234567"], ["measured"])
    (used,) = found.used
    assert isinstance(used.figure, SeedFigure)
    assert used.text == 'vnmse(codec="dynamiq", bits=3)' and used.figure.median == pytest.approx(0.0808)
    assert verdict(claim(lambda e: above(errors(e, 3), 1)), printed, bits()).word is Word.LATE_NOT_REPRODUCED
    small = verdict(claim(true, size="gpu", **about), printed, bits())
    assert (small.text, small.detail) == ("not testable here: size", "needs size=gpu")
    assert verdict(claim(true, size="gpu", **about), printed, bits(), bits(size="gpu")).size == "gpu"
    assert verdict(claim(true), printed).detail == "budgets has no record"
    untold = claim(None, why="no sweep can", sweeps=())
    assert (verdict(untold, printed).word, verdict(untold, printed).detail) == (Word.NOT_RUN, "no sweep can")

    def own(e: Evidence) -> bool:
        return e.paper("paper/table4", method="3b") > e.paper("paper/table4", method="6b")

    found = verdict(claim(own, sweeps=(), basis=Basis.PAPER), printed)
    assert (found.word, found.kinds, found.commits) == (Word.CONSISTENT, ["printed"], [])


def test_what_a_record_lacks_is_not_testable_and_what_has_not_run_is_not_run(printed: Reference) -> None:
    def other(e: Evidence) -> Any:
        return above(e.vnmse(model="gemma1b", codec="dynamiq", bits=3), 0.01)

    lacking = verdict(claim(other), printed, bits(), bits("gemma1b", size="tiny"))
    assert (lacking.reason, lacking.size) == (Reason.NO_CELLS, "small")
    assert "has no cell with model=gemma1b, codec=dynamiq, bits=3 at size=small" in lacking.detail
    waiting = cell(
        {"model": "gemma1b", "codec": "dynamiq", "codec.bits": 3}, status="unfinished", metric=None
    )
    some = bits()
    begun = SweepRecord(**{**vars(some), "cells": [*some.cells, waiting]})
    assert verdict(claim(other), printed, begun).word is Word.NOT_RUN


def test_an_axis_that_one_size_does_not_have_is_not_testable_there(printed: Reference) -> None:
    def stepped(e: Evidence) -> bool:
        return e.vnmse(model="llama1b", codec="dynamiq", bits=3, step=20) > 0

    found = judge(claim(stepped), {"budgets": [bits()]}, printed)
    assert found.detail == "budgets does not tell its cells' step at size=small"
    several = verdict(claim(lambda e: e.vnmse(codec="dynamiq") > 0, size="gpu"), printed, bits())
    assert (several.reason, several.detail) == (Reason.SIZE, "needs size=gpu")


def test_a_failed_seed_is_a_miss(printed: Reference) -> None:
    some = bits(seeds=(0, 1))
    failed = cell(
        {"model": "llama1b", "codec": "mxfp8", "codec.bits": None}, 2, status="failed", reason="diverged at 3"
    )
    records = {"budgets": SweepRecord(**{**vars(some), "cells": [*some.cells, failed]})}
    evidence = Evidence(records, printed)
    final = evidence.final_metric(codec="mxfp8")
    assert (final.by_seed[2], final.high, final.median) == (math.inf, math.inf, 10)
    assert evidence.tta(1.05, codec="mxfp8").high == math.inf and evidence.vnmse(codec="mxfp8") < 1


def test_one_seed_that_has_not_run_is_no_miss(printed: Reference) -> None:
    some = bits(seeds=(0, 1))
    for status in ("unfinished", "damaged"):
        open_ = cell(
            {"model": "llama1b", "codec": "mxfp8", "codec.bits": None}, 2, status=status, metric=None
        )
        cut = SweepRecord(**{**vars(some), "cells": [*some.cells, open_]})
        found = verdict(claim(lambda e: e.tta(1.05, codec="mxfp8") < 4), printed, cut)
        assert (found.word, "has not run with every seed" in found.detail) == (Word.NOT_RUN, True)
        told = claim(lambda e: below(errors(e, 3), 1), foil=FOIL)
        assert verdict(told, printed, cut).reason is Reason.NO_FOIL


def test_two_seeds_tell_what_holds_with_every_seed() -> None:
    def holds(effects: Any) -> bool:
        return holding(effects, 0.2)

    pair = SeedFigure({0: 1.0, 1: 4.0}), SeedFigure({0: 2.0, 1: 3.0, 2: 0.0})
    assert not holds(below(*pair)) and not holds(above(*pair))
    for more in (1.5, 4.0):
        assert holds(below(pair[0], pair[0] + more)) and holds(above(pair[0] + more, pair[0]))
    assert not holds(below(pair[0], pair[0])) and not holds(above(pair[0], pair[0]))
    (single,) = above(SeedFigure({1: 5.0}), pair[1])
    with pytest.raises(MissingError, match="one seed tells no spread"):
        assert single.spread


def test_a_missed_target_is_later_than_any_time() -> None:
    never, late = SeedFigure({0: math.inf, 1: math.inf}), SeedFigure({0: 2.0, 1: 3.0})
    (effect,) = below(late, never)
    assert effect.holds(0.2) and effect.resolved(0.2)
    (effect,) = below(never, late)
    assert not effect.holds(0.2) and effect.resolved(0.2)
    (effect,) = below(never, never)
    assert not effect.holds(0.2) and not effect.resolved(0.2), "neither got there"


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(1, 3.0), (2, 12.0)], 2.0),
        ([(1, 8.0), (4, 4.0), (16, 2.0)], -0.5),
        ([(1, 5.0)], None),
        ([(2, 5.0), (2, 6.0)], None),
        ([(0, 1.0), (1, 2.0)], None),
        ([(1, 2.0), (2, 0.0)], None),
        ([(1, 2.0), (2, -1.0)], None),
    ],
)
def test_an_exponent_takes_positive_points_at_different_places(
    points: list[tuple[float, float]], found: float | None
) -> None:
    if found is not None:
        assert exponent(points) == pytest.approx(found)
        return
    with pytest.raises(MissingError, match="an exponent takes "):
        exponent(points)


def test_one_seed_cannot_tell_what_holds_with_every_seed(printed: Reference) -> None:
    for relation in (below, above):
        asked = claim(lambda e, relation=relation: relation(errors(e, 5), errors(e)))  # type: ignore[misc]
        found = verdict(asked, printed, bits(seeds=(0,)))
        assert (found.reason, found.detail) == (Reason.NO_CELLS, "one seed tells no spread")


@pytest.mark.parametrize(("metric", "worst"), [("perplexity", math.inf), ("accuracy", -math.inf)])
def test_a_codec_whose_seeds_all_fail_never_gets_there(metric: str, worst: float) -> None:
    rows = [({"codec": "bf16"}, seed, {"final_metric": 0.5}) for seed in (0, 1)]
    more = [cell({"codec": "thc"}, seed, status="failed", metric=None) for seed in (0, 1)]
    some = record(("codec",), rows, more=more, metric=metric, name="budgets")
    evidence = Evidence({"budgets": some}, Reference(Path("none")))
    assert evidence.final_metric(codec="thc").median == worst
    assert evidence.tta(1.05, codec="thc").median == math.inf
    with pytest.raises(MissingError):
        evidence.vnmse(codec="thc")


def test_the_largest_record_with_the_cells_counts(printed: Reference) -> None:
    large = bits(size="gpu")
    fewer = SweepRecord(
        **{**vars(large), "cells": [each for each in large.cells if "bits=6" not in each.label]}
    )
    asked = claim(lambda e: below(errors(e, 6), 0.01), foil=swap(bits=(6, 3)))
    assert [verdict(asked, printed, bits(), each).size for each in (large, fewer)] == ["gpu", "small"]
    assert verdict(asked, printed, bits(), fewer).word is Word.LATE_REPRODUCED


def test_several_sweeps_can_be_compared(printed: Reference) -> None:
    ring, butterfly = (
        bits(),
        record(
            ("codec",),
            [({"codec": "dynamiq"}, seed, {"vnmse": 0.003}) for seed in (0, 1)],
            name="butterflies",
        ),
    )

    def lower(e: Evidence) -> Any:
        return below(e.vnmse(sweep="butterflies", codec="dynamiq"), errors(e, 5))

    found = verdict(
        claim(lower, sweeps=("budgets", "butterflies"), foil=swap(bits=(5, 6))), printed, ring, butterfly
    )
    assert found.word is Word.LATE_REPRODUCED


def test_a_decorated_predicate_is_a_claim() -> None:
    made = Claims("P")

    @made.on("budgets")("P1", "Table 4", "0.004", size="gpu")
    def _(e: Evidence) -> Any:
        """The error falls
        with bits."""
        return falls(errors(e, b) for b in (3, 4, 5, 6))

    made.without_predicate("P2", "Table 5", "It is fast.", "2 ×", "no GPU here")
    first, second = made.found
    assert (first.id, first.paper, first.printed, first.value) == ("P1", "P", "Table 4", "0.004")
    assert (first.says, first.sweeps, first.size) == ("The error falls with bits.", ("budgets",), "gpu")
    assert first.formula == "return falls(errors(e, b) for b in (3, 4, 5, 6))"
    assert (second.holds, second.formula, second.why) == (None, "", "no GPU here")
