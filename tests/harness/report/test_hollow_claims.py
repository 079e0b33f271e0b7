"""One hollow claim of each kind beside an honest one: each hollow one is refused the word "reproduced"."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_records import record

from gradwire.harness.report.claims.claim import Chance, Claim, Claims
from gradwire.harness.report.claims.effect_words import effect_in_words
from gradwire.harness.report.claims.effects import (
    Effects,
    above,
    at_least,
    at_most,
    below,
    every,
    near,
    spared,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.claims.verdict import Reason, Verdict, Word, judge
from gradwire.harness.report.evaluation import SeedFigure
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.summary import counted, informative
from gradwire.harness.report.sweep_record import SweepRecord

NOWHERE = Reference(Path("none"))
MXFP8, THC = swap(codec=("dynamiq", "mxfp8")), swap(codec=("dynamiq", "thc"))

# codec -> error, loss, score, bits; the loss and score of a seed differ by the noise below
CODECS = {
    "bf16": (0.0001, 3.0, 0.60, 16.0),
    "dynamiq": (0.004, 3.001, 0.60, 5.0),
    "mxfp8": (0.012, 3.002, 0.60, 8.0),
    "thc": (0.4, 3.3, 0.26, 5.0),
    "idle": (0.004, 3.001, 0.60, 5.0),
}
NOISE = {0: 0.01, 1: -0.004, 2: -0.006}


def recorded(*claims: Claim) -> SweepRecord:
    """A record that was made when these claims stood."""
    rows = []
    for codec, (error, loss, score, bits) in CODECS.items():
        for seed, noise in NOISE.items():
            own = noise * (-1) ** len(codec)
            figures = {"vnmse": error * (1 + noise), "train_loss": loss + own, "final_metric": score + own}
            figures["step_time_s"] = bits * (1 + noise)
            rows.append(({"codec": codec}, seed, figures | {"wire_bits_per_coordinate": bits}))
    found = record(("codec",), rows, metric="accuracy", name="made_up")
    return replace(found, claims={claim.id: claim.digest for claim in claims})


def told(claim: Claim, *, stood: bool = True) -> Verdict:
    return judge(claim, {"made_up": [recorded(*[claim] * stood)]}, NOWHERE)


def made(holds: Callable[[Evidence], bool | Effects], decorator: str = "on", **about: object) -> Claim:
    claims = Claims("P")
    sweeps = () if decorator == "of_print" else ("made_up",)
    getattr(claims, decorator)(*sweeps)("P1", "Table 1", **about)(holds)
    return claims.found[0]


def smaller_error(e: Evidence) -> Effects:
    """DynamiQ's error is below MXFP8's."""
    return below(e.vnmse(codec="dynamiq"), e.vnmse(codec="mxfp8"))


def test_an_honest_claim_is_reproduced() -> None:
    found = told(made(smaller_error, foil=THC))
    assert (found.word, found.reason) == (Word.REPRODUCED, None) and found.detail.startswith("a ratio of 3")
    assert told(made(lambda e: smaller_error(e), foil=THC)).word is Word.REPRODUCED
    printed = made(lambda e: near(e.vnmse(codec="mxfp8") / e.vnmse(codec="dynamiq"), 3.2, null=1.0), foil=THC)
    assert told(printed).word is Word.REPRODUCED

    def keeps(e: Evidence) -> Effects:
        return spared(*(e.train_loss(codec=c) for c in ("mxfp8", "bf16", "thc")))

    assert told(made(keeps)).word is Word.REPRODUCED


def test_an_identity_is_by_construction_and_counted_apart() -> None:
    def identity(e: Evidence) -> bool:
        return float(e.vnmse(codec="thc") / e.vnmse(codec="thc")) == 1

    found = told(made(identity, "by_construction"))
    assert found.word is Word.BY_CONSTRUCTION and not found.word.informative
    assert told(made(identity)).text == "not testable here: no effect declared"


def test_a_paper_against_itself_is_consistent_or_not() -> None:
    assert judge(made(lambda e: 2 + 2 == 4, "of_print"), {}, NOWHERE).word is Word.CONSISTENT
    assert judge(made(lambda e: 2 + 2 == 5, "of_print"), {}, NOWHERE).word is Word.INCONSISTENT


def test_a_tolerance_as_large_as_the_effect_is_refused_as_it_is_declared() -> None:
    for tolerance in (0.21, 0.5, 1.0, -0.1):
        with pytest.raises(ValueError, match=f"claim P1 has a tolerance of {tolerance:g} of its effect"):
            made(smaller_error, tolerance=tolerance)

    def far(e: Evidence) -> Effects:
        return near(e.vnmse(codec="mxfp8") / e.vnmse(codec="dynamiq"), 4.0, null=1.0)

    found = told(made(far, foil=THC))
    assert found.word is Word.NOT_REPRODUCED, "2 of 3 are more than a fifth off, though 3 of 4 are not"


def test_an_idle_mechanism_is_not_testable() -> None:
    def lower(e: Evidence) -> Effects:
        return below(e.vnmse(codec="idle"), e.vnmse(codec="dynamiq"))

    def acts(e: Evidence) -> bool:
        """it sends fewer bits than DynamiQ."""
        return e.wire_bits_per_coordinate(codec="idle") < e.wire_bits_per_coordinate(codec="dynamiq")

    assert told(made(lower, foil=THC)).reason is Reason.IDLE, "both sides are the same"

    def beats(e: Evidence) -> Effects:
        return below(e.vnmse(codec="idle"), e.vnmse(codec="mxfp8"))

    assert told(made(beats, foil=swap(codec=("idle", "thc")))).word is Word.REPRODUCED
    found = told(made(beats, foil=swap(codec=("idle", "thc")), active=acts))
    assert (found.text, found.detail) == (
        "not testable here: mechanism idle",
        "not so in these runs: it sends fewer bits than DynamiQ",
    )


def test_times_taken_beside_other_work_are_not_testable() -> None:
    def sooner(e: Evidence) -> Effects:
        return below(e.step_time_s(codec="dynamiq"), e.step_time_s(codec="mxfp8"))

    for disturbed, told_of in (
        (frozenset[str](), Word.REPRODUCED),
        (frozenset({"made_up"}), Word.NOT_TESTABLE),
    ):
        claim = made(sooner, foil=swap(codec=("dynamiq", "bf16")))
        found = judge(claim, {"made_up": [recorded(claim)]}, NOWHERE, disturbed=disturbed)
        assert found.word is told_of and (found.reason is Reason.TIMES) is bool(disturbed)
        error = made(smaller_error, foil=THC)
        kept = judge(error, {"made_up": [recorded(error)]}, NOWHERE, disturbed=disturbed)
        assert kept.word is Word.REPRODUCED, "errors are not disturbed"


def test_a_codec_that_does_no_harm_fails_nothing() -> None:
    def keeps(e: Evidence) -> Effects:
        scores = (e.final_metric(codec=c) for c in ("dynamiq", "thc", "mxfp8"))
        return spared(*scores, harm="falls")

    found = told(made(keeps))
    assert found.reason is Reason.NO_FOIL and found.detail == "the codec that has to fail it does no harm"


def test_guesses_are_not_testable() -> None:
    def keeps(e: Evidence) -> Effects:
        return at_least(e.final_metric(codec="dynamiq") / e.final_metric(codec="bf16"), 0.99, null=0.0)

    about = {"foil": THC}
    assert told(made(keeps, **about)).word is Word.REPRODUCED
    guessing = Chance(0.25, 100, lambda e: e.final_metric(codec="thc"))
    assert told(made(keeps, chance=guessing, **about)).text == "not testable here: at chance"
    learned = Chance(0.25, 100, lambda e: e.final_metric(codec="bf16"))
    assert told(made(keeps, chance=learned, **about)).word is Word.REPRODUCED


def test_what_no_codec_fails_is_not_testable() -> None:
    def small(e: Evidence) -> Effects:
        return at_most(e.vnmse(codec="dynamiq"), 0.9, null=1.0)

    found = told(made(small, foil=THC))
    assert found.text == "not testable here: no codec fails it" and "codec=thc, passes" in found.detail
    assert told(made(smaller_error)).detail == "no foil is named"
    itself = told(made(smaller_error, foil=MXFP8))
    assert itself.reason is Reason.NO_FOIL, "MXFP8 is not below itself, which tells nothing"
    equal = told(made(smaller_error, foil=swap(codec=("mxfp8", "idle"))))
    assert equal.word is Word.REPRODUCED, "another codec with DynamiQ's error fails it"
    absent = told(made(smaller_error, foil=swap(codec=("dynamiq", "qsgd"))))
    assert absent.reason is Reason.NO_FOIL and "codec=qsgd, is not recorded" in absent.detail
    with pytest.raises(ValueError, match="takes the place of nothing that it asks for"):
        told(made(smaller_error, foil=swap(codec=("bf16", "thc"))))


def test_a_foil_may_be_another_metric() -> None:
    def few_bits(e: Evidence) -> Effects:
        return below(e.figure("vnmse", codec="dynamiq"), 0.01)

    loss = swap(metric=("vnmse", "train_loss"))
    assert told(made(few_bits, foil=loss)).word is Word.REPRODUCED, "the loss is not below 0.01"
    score = swap(metric=("train_loss", "vnmse"))
    with pytest.raises(ValueError, match="takes the place of nothing"):
        told(made(few_bits, foil=score))


def test_a_claim_that_rests_on_a_later_rule_is_late() -> None:
    early, late = made(smaller_error, foil=THC), made(smaller_error, foil=THC, rules="foils count by cells")
    assert early.digest != late.digest
    assert judge(late, {"made_up": [recorded(early)]}, NOWHERE).word is Word.LATE_REPRODUCED


def test_a_claim_says_why_nothing_has_to_fail_it() -> None:
    reason = "no codec is recorded that has MXFP8's error"
    found = told(made(smaller_error, unfailed=reason))
    assert (found.reason, found.detail) == (Reason.NO_FOIL, f"there is no foil: {reason}")
    assert made(smaller_error, unfailed=reason).digest == made(smaller_error).digest, (
        "a reason decides nothing"
    )
    with pytest.raises(ValueError, match="claim P1 has a foil and says why there is none"):
        made(smaller_error, foil=THC, unfailed=reason)


def test_an_effect_below_the_spread_of_the_seeds_is_not_testable() -> None:
    def worse(e: Evidence) -> Effects:
        return below(e.train_loss(codec="bf16"), e.train_loss(codec="dynamiq"))

    found = told(made(worse, foil=THC))
    assert found.text == "not testable here: effect below twice the seeds' spread"

    def never(e: Evidence) -> Effects:
        return below(e.train_loss(codec="dynamiq"), e.train_loss(codec="bf16"))

    assert told(made(never, foil=THC)).reason is Reason.SPREAD, "nor is the opposite refuted"
    harmless = made(lambda e: spared(*(e.train_loss(codec=c) for c in ("dynamiq", "bf16", "mxfp8"))))
    assert told(harmless).reason is Reason.SPREAD, "what does no harm cannot show that harm is spared"


def test_numbers_without_seeds_and_bare_comparisons_are_refused() -> None:
    with pytest.raises(ValueError, match="claim P1: an effect is of numbers without seeds"):
        told(made(lambda e: below(e.vnmse(codec="dynamiq").median, 1.0), foil=THC))
    with pytest.raises(ValueError, match="effects and bare comparisons cannot be mixed"):
        told(made(lambda e: every(smaller_error(e), e.vnmse(codec="dynamiq") < 1), foil=THC))


def test_a_claim_written_after_the_record_is_not_plainly_reproduced() -> None:
    late = told(made(smaller_error, foil=THC), stood=False)
    assert late.word is Word.LATE_REPRODUCED and "written after the record" in late.text
    changed = made(smaller_error, foil=THC, tolerance=0.1)
    earlier = recorded(made(smaller_error, foil=THC))
    assert judge(changed, {"made_up": [earlier]}, NOWHERE).word is Word.LATE_REPRODUCED
    opposite = made(lambda e: above(e.vnmse(codec="dynamiq"), e.vnmse(codec="mxfp8")), foil=THC)
    assert told(opposite, stood=False).word is Word.LATE_NOT_REPRODUCED
    verdicts = [told(made(smaller_error, foil=THC)), late, told(opposite), told(made(smaller_error))]
    assert counted(verdicts)[Word.REPRODUCED] == 1
    assert informative(verdicts) == (
        "3 informative verdicts: 2 reproduced, 1 not; 1 by claims written after their records"
    )


def figure(*values: float) -> SeedFigure:
    return SeedFigure(dict(enumerate(values)))


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_a_seed_that_diverges_is_not_left_out_of_a_size(lost: float) -> None:
    """Nor do the seeds tell anything where only some diverge."""
    base, harmed = figure(1.0, 1.01, 1.02), figure(2.0, 2.1, 2.05)
    sized = {
        "spared": lambda last: spared(figure(1.0, 1.01, last), base, harmed),
        "near": lambda last: near(figure(1.5, 1.51, last), 1.5, null=1.0),
        "at_least": lambda last: at_least(figure(1.5, 1.51, -last), 1.3, null=1.0),
        "at_most": lambda last: at_most(figure(0.5, 0.51, last), 0.75, null=1.0),
    }
    finite = {"spared": 1.02, "near": 1.49, "at_least": -1.49, "at_most": 0.49}
    for name, made_of in sized.items():
        (whole,), (effect,) = made_of(finite[name]), made_of(lost)
        assert whole.holds(0.2) and whole.resolved(0.2), name
        assert not effect.holds(0.2) and not effect.resolved(0.2), name
        assert effect_in_words(effect, 0.2) == "no finite effect with 1 of 3 seeds"


def test_a_codec_that_diverges_with_every_seed_is_not_spared() -> None:
    base, harmed = figure(1.0, 1.01), figure(2.0, 2.1)
    (effect,) = spared(figure(math.inf, math.inf), base, harmed)
    assert not effect.holds(0.2) and effect.resolved(0.2)
    (beyond,) = at_least(figure(1.5, math.inf), 1.3, null=1.0)
    assert beyond.holds(0.2) and beyond.resolved(0.2), "more than is claimed is no divergence"


TIMES = {  # of the subject and of what it is compared with, by seed -> holds, resolved, text
    "never": ((math.inf,) * 3, (13.4, 11.9, 12.0), False, True, "0 of 3 seeds, against 3 of 3 seeds"),
    "neither": ((math.inf,) * 3, (13.4, math.inf, 11.9), False, False, "0 of 3 seeds, against 2 of 3 seeds"),
    "slower": ((9.0, 9.2, math.inf), (7.0, 7.1, math.inf), False, True, "2 of 3 seeds, against 2 of 3 seeds"),
    "once": ((math.inf, 9.0, 9.1), (13.4, 13.4, 13.5), False, False, "2 of 3 seeds, against 3 of 3 seeds"),
    "alone": (
        (9.0, math.inf, math.inf),
        (8.5, math.inf, math.inf),
        False,
        False,
        "1 of 3 seeds, against 1 of 3 seeds",
    ),
    "always": ((9.0, 9.2, 9.1), (math.inf,) * 3, True, True, "3 of 3 seeds, against 0 of 3 seeds"),
    "twice": ((9.0, 9.2, 9.1), (13.4, math.inf, 13.6), True, True, "3 of 3 seeds, against 2 of 3 seeds"),
}


@pytest.mark.parametrize("case", TIMES)
def test_missed_targets_are_counted(case: str) -> None:
    """Misses tell a direction if there are no times to compare, unless both sides miss with a seed."""
    first, second, holds, resolved, reached = TIMES[case]
    aimed = [replace(figure(*times), baseline=tuple(recorded().cells)) for times in (first, second)]
    for (effect,) in (below(*aimed), above(*reversed(aimed)), below(figure(*first), figure(*second))):
        assert (effect.holds(0.2), effect.resolved(0.2)) == (holds, resolved)
    (effect,) = below(*aimed)
    counted_seeds, *size = effect_in_words(effect, 0.2).split("; ")
    assert counted_seeds == f"target reached with {reached}"
    ratios = {
        "once": "a ratio of 1.4",
        "twice": "a ratio of 1.4",
        "slower": "a ratio of 0.77",
        "alone": "a ratio of 0.94",
    }
    assert [each.startswith(ratios[case]) for each in size[-1:]] == [True] * (case in ratios)
    assert size[:-1] == [each for each in size if each.startswith("finite with")]


def test_targets_that_all_seeds_reach_are_not_spoken_of() -> None:
    aimed = [replace(figure(*times), baseline=tuple(recorded().cells)) for times in ((1.0, 1.1), (3.0, 3.1))]
    (effect,) = below(*aimed)
    assert effect_in_words(effect, 0.2).startswith("a ratio of 2.9")


def test_a_claim_of_no_effect_is_not_told() -> None:
    for (effect,) in (at_least(figure(1.05, 1.06), 0.5, null=1.0), near(figure(1.0, 1.0), 1.0, null=1.0)):
        assert effect.holds(0.2) and not effect.resolved(0.2)


SOURCE = '''
from gradwire.harness.report.claims.claim import Chance, Claims
from gradwire.harness.report.claims.effects import at_least
from gradwire.harness.report.claims.evidence import Evidence, swap

LEAST = 3.0
FACTOR = 1.0
claims = Claims("P")
active, chance = lambda e: True, Chance(0.25, 100, score=lambda e: e.vnmse(codec="bf16"))


def error(e, codec, factor=FACTOR):
    return e.vnmse(codec=codec) * factor


@claims.on("made_up")("P1", "Table 1", foil=swap(codec=("mxfp8", "bf16")), active=active, chance=chance)
def _(e: Evidence):
    """MXFP8 has three times DynamiQ's error."""
    return at_least(error(e, "mxfp8") / error(e, "dynamiq"), LEAST, null=1.0)
'''


def digest_in(path: Path, source: str) -> str:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        found: str = module.claims.found[0].digest
    finally:
        del sys.modules[path.stem]
    return found


def test_a_digest_follows_a_claim_to_another_file(tmp_path: Path) -> None:
    first = digest_in(tmp_path / "here.py", SOURCE)
    moved = SOURCE.replace("def _(", "# moved\n\n\ndef renamed(").replace(
        'error(e, "mxfp8") / error(e, "dynamiq")',
        '(\n        error(e, "mxfp8")\n        / error(e, "dynamiq")\n    )',
    )
    moved = moved.replace("# moved\n\n\n", "")
    assert digest_in(tmp_path / "there.py", moved + "\n# the end\n") == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LEAST = 3.0", "LEAST = 2.5"),
        ("three times DynamiQ's", "twice DynamiQ's"),
        ("null=1.0", "null=0.0"),
        ("e.vnmse(codec=codec)", "e.train_loss(codec=codec)"),
        ("FACTOR = 1.0", "FACTOR = 2.0"),
        ("score=lambda e: e.vnmse(codec", "score=lambda e: e.train_loss(codec"),
        ('"bf16")), active', '"thc")), active'),
        ('"Table 1", foil', '"Table 1", tolerance=0.1, foil'),
        ('claims.on("made_up")', 'claims.by_construction("made_up")'),
    ],
)
def test_a_digest_changes_with_what_decides(old: str, new: str, tmp_path: Path) -> None:
    assert old in SOURCE
    assert digest_in(tmp_path / "a.py", SOURCE) != digest_in(tmp_path / "b.py", SOURCE.replace(old, new))
