"""Claims: the language of predicates, what is refused, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from sweep_records import cell, record

from gradwire.harness.report.claims.check import KnownSweep
from gradwire.harness.report.claims.claims import Claim, Verdict, check_claims, judge, read_claims
from gradwire.harness.report.claims.evaluate import Evaluation
from gradwire.harness.report.claims.figures import Figure, MissingError
from gradwire.harness.report.claims.grammar import ClaimError, parse
from gradwire.harness.report.reference import COLUMNS, Reference
from gradwire.harness.report.sweep_record import SweepRecord

AXES = ("model", "codec", "codec.bits")
ERRORS = {3: 0.08, 4: 0.02, 5: 0.004, 6: 0.001}
SPEEDS = {3: 9.0, 4: 8.0, 5: 7.0, 6: 6.0}


def bits(model: str = "llama1b", seeds: Sequence[int] = (0, 1, 2), size: str = "small") -> SweepRecord:
    """Bit budgets beside BF16 and MXFP8; every seed makes errors a little larger."""
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


def holds(text: str, reference: Reference | None = None, **records: SweepRecord) -> bool:
    return Evaluation(records or {"budgets": bits()}, reference or Reference(Path("none"))).holds(parse(text))


def known(*records: SweepRecord) -> dict[str, KnownSweep]:
    found: dict[str, KnownSweep] = {}
    for each in records:
        found.setdefault(each.name, KnownSweep()).add_record(each)
    return found


def verdict(claim: Claim, reference: Reference, *records: SweepRecord) -> Verdict:
    tree = check_claims([claim], known(bits(), *records), reference).get(claim.id)
    by_name: dict[str, list[SweepRecord]] = {}
    for each in records:
        by_name.setdefault(each.name, []).append(each)
    return judge(claim, tree, by_name, reference)


def claim(predicate: str, **about: object) -> Claim:
    return Claim(
        **{"id": "P1", "paper": "P", "printed": "T", "says": "s", "sweep": "budgets", "holds": predicate}
        | about
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ('vnmse(codec="dynamiq", bits=5) < vnmse(codec="mxfp8")', True),
        ('vnmse(codec="dynamiq", codec_bits=5, model="llama1b") == 0.00404', True),
        ('vnmse(codec="dynamiq", bits=5, workers=4, topology="ring") < 1', True),
        ('falls(vnmse(codec="dynamiq", bits=b) for b in (3, 4, 5, 6))', True),
        ('rises(vnmse(codec="dynamiq", bits=b) for b in axis("bits"))', False),
        ('falls(vnmse(codec="dynamiq", bits=b) for b in axis("bits", codec="dynamiq") if b != 4)', True),
        ('all(vnmse(model=m, codec=c) < 0.01 for m in axis("model") for c in ("bf16", "mxfp8"))', True),
        ('count(vnmse(codec=c, bits=b) < 0.01 for c, b in axis("codec", "codec.bits")) == 2', True),
        ('2.5 <= vnmse(codec="mxfp8") / vnmse(codec="dynamiq", bits=6) <= 5.5', True),
        ('abs(vnmse(codec="mxfp8") / vnmse(codec="dynamiq", bits=6) - 5) < 1e-9', True),
        ('1 - 2 * vnmse(codec="bf16") == 1 and not vnmse(codec="bf16") > 0', True),
        ('vnmse(codec="bf16") / vnmse(codec="bf16") < 1 or -1 < 0', True),
        ('below(vnmse(codec="dynamiq", bits=5), vnmse(codec="mxfp8"))', True),
        ('above(vnmse(codec="dynamiq", bits=5), vnmse(codec="mxfp8"))', False),
        ('tta(1.05, codec="mxfp8") == 3 and tta(1.05, codec="bf16") == 5', True),
        ('tta(1.05, codec="dynamiq", bits=3) == inf', True),
        ('tta(1.05, codec="mxfp8") / tta(1.05, codec="dynamiq", bits=3) == 0', True),
        ('stays(1.05, codec="mxfp8") == 1 and stays(1.05, codec="dynamiq", bits=3) == 0', True),
        ('last("perplexity", codec="mxfp8") == 10', True),
        ('during("perplexity", 0, 0.5, codec="mxfp8") == 15.2', True),
        ('figure("vnmse", codec="mxfp8") > high(vnmse(codec="dynamiq", bits=5))', True),
        ('-2.6 < exponent((b, rounds_per_second(codec="dynamiq", bits=b)) for b in (3, 6)) < -0.5', True),
        ("line_error((r, 3 * r + 5) for r in (1, 2, 7)) < 1e-12", True),
        ("abs(line_error((1, 10), (2, 16), (3, 20)) - (1 / 30 + 2 / 48 + 1 / 60) / 3) < 1e-9", True),
        ('max(vnmse(codec="dynamiq", bits=b) for b in (3, 4)) == median(0.0808, 0.0808)', True),
        ("ceil(log2(15 * 8 + 1)) == 7 and sqrt(4) == 2", True),
        ("2 ** 4 == 16", True),
        ('mean(vnmse(codec="mxfp8")) == 0.00505 and 0.0001 < margin(vnmse(codec="mxfp8")) < 0.0002', True),
        ('margin(vnmse(codec="mxfp8") / vnmse(codec="dynamiq", bits=5)) < 1e-12', True),
    ],
)
def test_predicates_mean_what_they_say(predicate: str, expected: bool) -> None:
    check_claims([claim(predicate)], known(bits()), Reference(Path("none")))
    assert holds(predicate) is expected


def test_printed_figures_can_be_compared(printed: Reference) -> None:
    error = 'paper("paper/table4", method="{}", metric="vNMSE")'
    assert holds(f"{error.format('3b')} / {error.format('5b')} > 16", printed)
    assert not holds(f"falls({error.format('5b')}, {error.format('3b')})", printed)


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        ("__import__('os').system('true')", "only functions by name"),
        ("vnmse.real > 1", "Attribute is not part"),
        ("(lambda: 1)() > 1", "only functions by name|Lambda is not part"),
        ("[b for b in (1, 2)] > 1", "ListComp is not part"),
        ("vnmse(codec='bf16')[0] > 1", "Subscript is not part"),
        ("vnmse(**{}) > 1", "Dict is not part|plain arguments"),
        ("f'{1}' > 1", "JoinedStr is not part"),
        ("(x := 1) > 0", "NamedExpr is not part"),
        ("b > 1", "no `for` gives it a value"),
        ("all(b > 1 for c in (1, 2))", "b is no function's call"),
        ("1 +", "is no predicate"),
        ("None == 1", "is no number and no text"),
        ("1 < " + "1 + " * 500 + "1", "characters|parts"),
        ('vnmse(codec="bf16")', "neither true nor false"),
        ('vmse(codec="bf16") > 0', "vmse is no metric of budgets"),
        ('figure("vmse", codec="bf16") > 0', "vmse is no metric of budgets"),
        ('vnmse(codek="bf16") > 0', "codek is no axis; there are"),
        ('vnmse(codec="bf17") > 0', "budgets has no codec=bf17; it has dynamiq, bf16, mxfp8"),
        ('all(vnmse(codec="dynamiq", bits=b) > 0 for b in (3, 7))', "has no codec.bits=7; it has 3, 4, 5, 6"),
        ('axis("budget") > 0', "budget is no axis"),
        ('vnmse(sweep="others", codec="bf16") > 0', "of the sweep others, which the claim does not name"),
        ('vnmse(codec="dynamiq") > 0', r"leaves codec.bits open"),
        ('all(vnmse(codec="bf16"))', "take comparisons"),
        ("falls() and 1 < 2", "has nothing to look at"),
        ('below(1, vnmse(codec="bf16"))', "takes two figures"),
        ("1 / 'a' > 1", "cannot be computed"),
        ("1 / 0 > 1", r"cannot be computed \(division by 0\)"),
        ("not 0 / 0 > 1", r"cannot be computed \(division by 0\)"),
        ("1e400 > 1", "a number is too large for 64 bits; write inf"),
        ("1e308 * 10 > 1", r"cannot be computed \(a number too large for 64 bits\)"),
        ("10.0 ** 10.0 ** 10.0 > 1", "cannot be computed"),
        ('tta(codec="bf16") > 1', "tta does not take nothing"),
        ("all(1 < b for b in 3)", "is nothing to go through"),
        ('paper("paper/table9", method="5b") > 1', "paper/table9 is none of the"),
        ('paper("paper/table4", method="9b") > 1', "has no method=9b; it has 3b, 5b, all, 6b"),
        ('paper("paper/table4", method="5b") > 1', "has 2 figures with"),
        ('paper("paper/table4", metric="share") > 1', "prints '<1' there"),
        ('paper("paper/table4", column="5b") > 1', "has no column column"),
    ],
)
def test_what_cannot_be_said_is_refused_in_one_line(predicate: str, said: str, printed: Reference) -> None:
    with pytest.raises(ClaimError, match=said) as refused:
        one = claim(predicate)
        tree = check_claims([one], known(bits()), printed)[one.id]
        judge(one, tree, {"budgets": [bits()]}, printed)
    assert "\n" not in str(refused.value)


def test_a_claim_about_an_unknown_sweep_is_refused(printed: Reference) -> None:
    with pytest.raises(ClaimError, match="claim P1: tables is no sweep; alike are budgets; correct it there"):
        check_claims([claim("1 < 2", sweep="tables")], known(bits()), printed)


def test_verdicts(printed: Reference) -> None:
    true, false = 'vnmse(codec="dynamiq", bits=3) > 0.01', 'vnmse(codec="dynamiq", bits=3) > 1'
    found = verdict(claim(true), printed, bits())
    assert (found.ruling, found.size, found.seeds) == ("reproduced", "small", [0, 1, 2])
    assert (found.commits, found.kinds) == (["1234567"], ["measured"])
    (used,) = found.used
    assert isinstance(used.figure, Figure)
    assert used.text == 'vnmse(codec="dynamiq", bits=3)' and used.figure.median == pytest.approx(0.0808)
    assert verdict(claim(false), printed, bits()).ruling == "not reproduced"
    assert verdict(claim(true, size="gpu"), printed, bits()).ruling == "not testable at this size"
    assert verdict(claim(true, size="gpu"), printed, bits(), bits(size="gpu")).size == "gpu"
    assert verdict(claim(true), printed).reason == "budgets has no record"
    untold = claim("", why="nobody can", sweep=[])
    assert (verdict(untold, printed).ruling, verdict(untold, printed).reason) == ("not run", "nobody can")
    own = 'paper("paper/table4", method="3b") > paper("paper/table4", method="6b")'
    found = verdict(claim(own, sweep=[]), printed)
    assert (found.ruling, found.kinds, found.commits) == ("reproduced", ["printed"], [])


def test_what_a_record_lacks_is_not_testable_and_what_has_not_run_is_not_run(printed: Reference) -> None:
    other = 'vnmse(model="gemma1b", codec="dynamiq", bits=3) > 0.01'
    lacking = verdict(claim(other), printed, bits(), bits("gemma1b", size="tiny"))
    assert (lacking.ruling, lacking.size) == ("not testable at this size", "small")
    assert "has no cell with model=gemma1b, codec=dynamiq, bits=3 at size=small" in lacking.reason
    waiting = cell(
        {"model": "gemma1b", "codec": "dynamiq", "codec.bits": 3}, status="unfinished", metric=None
    )
    some = bits()
    begun = SweepRecord(**{**vars(some), "cells": [*some.cells, waiting]})
    assert verdict(claim(other), printed, begun).ruling == "not run"


def test_an_axis_that_one_size_does_not_have_is_not_testable_there(printed: Reference) -> None:
    text = 'vnmse(model="llama1b", codec="dynamiq", bits=3, step=20) > 0'
    tree = parse(text)
    found = judge(claim(text), tree, {"budgets": [bits()]}, printed)
    assert found.reason == "budgets does not tell its cells' step at size=small"
    several = verdict(claim('vnmse(codec="dynamiq") > 0', size="gpu"), printed, bits())
    assert (several.ruling, several.reason) == ("not testable at this size", "needs size=gpu")


def test_a_failed_seed_is_a_miss(printed: Reference) -> None:
    some = bits(seeds=(0, 1))
    failed = cell(
        {"model": "llama1b", "codec": "mxfp8", "codec.bits": None}, 2, status="failed", reason="diverged at 3"
    )
    records = {"budgets": SweepRecord(**{**vars(some), "cells": [*some.cells, failed]})}
    evaluation = Evaluation(records, printed)
    assert evaluation.holds(
        parse('high(final_metric(codec="mxfp8")) == inf and final_metric(codec="mxfp8") == 10')
    )
    assert evaluation.holds(parse('high(tta(1.05, codec="mxfp8")) == inf and vnmse(codec="mxfp8") < 1'))
    assert evaluation.used[0].figure.by_seed[2] == math.inf  # type: ignore[union-attr]


def test_one_seed_that_has_not_run_is_no_miss(printed: Reference) -> None:
    some = bits(seeds=(0, 1))
    for status in ("unfinished", "damaged"):
        open_ = cell(
            {"model": "llama1b", "codec": "mxfp8", "codec.bits": None}, 2, status=status, metric=None
        )
        cut = SweepRecord(**{**vars(some), "cells": [*some.cells, open_]})
        found = verdict(claim('tta(1.05, codec="mxfp8") < 4'), printed, cut)
        assert (found.ruling, "has not run with every seed" in found.reason) == ("not run", True)
        assert verdict(claim('vnmse(codec="bf16") < 1'), printed, cut).ruling == "reproduced"


def test_one_seed_cannot_tell_what_holds_with_every_seed(printed: Reference) -> None:
    for text in ("below", "above"):
        asked = claim(f'{text}(vnmse(codec="dynamiq", bits=5), vnmse(codec="mxfp8"))')
        found = verdict(asked, printed, bits(seeds=(0,)))
        assert found.ruling == "not testable at this size" and found.reason.endswith("two or more seeds")


@pytest.mark.parametrize(("metric", "worst"), [("perplexity", "inf"), ("accuracy", "-inf")])
def test_a_codec_whose_seeds_all_fail_never_gets_there(metric: str, worst: str) -> None:
    rows = [({"codec": "bf16"}, seed, {"final_metric": 0.5}) for seed in (0, 1)]
    more = [cell({"codec": "thc"}, seed, status="failed", metric=None) for seed in (0, 1)]
    some = record(("codec",), rows, more=more, metric=metric, name="budgets")
    assert holds(f'final_metric(codec="thc") == {worst}'.replace("== -inf", "< -1e9"), budgets=some)
    assert holds('tta(1.05, codec="thc") == inf', budgets=some)
    with pytest.raises(MissingError):
        holds('vnmse(codec="thc") < 1', budgets=some)


def test_the_largest_record_with_the_cells_counts(printed: Reference) -> None:
    large = bits(size="gpu")
    fewer = SweepRecord(
        **{**vars(large), "cells": [each for each in large.cells if "bits=6" not in each.label]}
    )
    asked = claim('vnmse(codec="dynamiq", bits=6) < 1')
    assert [verdict(asked, printed, bits(), each).size for each in (large, fewer)] == ["gpu", "small"]
    assert verdict(asked, printed, bits(), fewer).ruling == "reproduced"


def test_several_sweeps_can_be_compared(printed: Reference) -> None:
    ring, butterfly = (
        bits(),
        record(("codec",), [({"codec": "dynamiq"}, 0, {"vnmse": 0.003})], name="butterflies"),
    )
    text = 'vnmse(sweep="butterflies", codec="dynamiq") < vnmse(codec="dynamiq", bits=5)'
    found = verdict(claim(text, sweep=["budgets", "butterflies"]), printed, ring, butterfly)
    assert found.ruling == "reproduced"


def test_entries_of_another_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    entry = {"paper": "P", "printed": "T", "says": "s", "sweep": "budgets", "holds": "1 < 2"}

    def write(**changes: object) -> None:
        lines = [f"  {key}: {value}" for key, value in {**entry, **changes}.items() if value is not None]
        path.write_text("\n".join(["P1:", *lines]) + "\n")

    write()
    (found,) = read_claims(path)
    assert (found.id, found.sweeps, found.size) == ("P1", ["budgets"], "small")
    for changes, said in (
        ({"hold": "x"}, "P1 has hold, which no claim has"),
        ({"says": None}, "P1: lacks says"),
        ({"size": "huge"}, "has size=huge; use tiny, small, gpu, paper"),
        ({"holds": None}, "either `holds`"),
        ({"why": "none"}, "either `holds`"),
        ({"value": "3"}, "value is 3, not text"),
    ):
        write(**changes)
        with pytest.raises(ValueError, match=said):
            read_claims(path)
    path.write_text("P1: 3\n")
    with pytest.raises(ClaimError, match="P1 is no claim"):
        read_claims(path)
