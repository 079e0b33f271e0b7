"""The first screen tells a reader a sentence a paper, counted from its verdicts."""

from __future__ import annotations

import itertools
import re

import pytest

from gradwire.harness.report.busy_times import disturbed_records
from gradwire.harness.report.claims.claim import Basis, Claim
from gradwire.harness.report.claims.verdict import Reason, Verdict, Word
from gradwire.harness.report.evaluations import CLAIMS
from gradwire.harness.report.papers import Paper, read_papers
from gradwire.harness.report.reference import NUMBER
from gradwire.harness.report.summary import OTHERS, Outcome, Topic
from gradwire.harness.runtime.conf import conf_directory

RESULTS = conf_directory().parent / "results"
TOPICS = {"time to accuracy": ["P1", "P2"], "error": ["P3*", "P4"]}
NO, YES, OPEN, ABSENT = Word.NOT_REPRODUCED, Word.REPRODUCED, Word.NOT_TESTABLE, Word.NOT_RUN


def verdict(name: str, word: Word, reason: Reason | None = None, basis: Basis = Basis.RUNS) -> Verdict:
    return Verdict(Claim(name, "A Paper", "Table 1", "It is so.", basis=basis), word, reason=reason)


def test_one_sentence_says_what_holds_what_does_not_and_what_could_not_be_tried() -> None:
    verdicts = [
        verdict("P1", Word.REPRODUCED),
        verdict("P2", Word.NOT_TESTABLE, Reason.CHANCE),
        verdict("P3a", Word.NOT_REPRODUCED),
        verdict("P3b", Word.LATE_NOT_REPRODUCED),
        verdict("P4", Word.NOT_TESTABLE, Reason.SPREAD),
        verdict("P5", Word.NOT_RUN, basis=Basis.NOTHING),
        verdict("P6", Word.CONSISTENT, basis=Basis.PAPER),
        verdict("P7", Word.BY_CONSTRUCTION, basis=Basis.MODEL),
    ]
    found = Outcome(verdicts, TOPICS)
    assert found.counts == ("Of 6 claims about runs 1 holds, 2 do not, 2 are undecided, and 1 has not run.")
    assert found.parts == [
        ("Holds", "time to accuracy (1 holds, 1 undecided)"),
        ("Does not hold", "error (2 do not, 1 undecided)"),
        ("Why some are undecided", "at chance (1), effect below twice the seeds' spread (1)"),
        ("Has not run", "other claims (1)"),
    ]
    assert (found.held, found.failed, found.untold, found.not_run) == (1, 2, 2, 1)
    assert found.itself == (1, 0) and found.identities == 1


def test_a_paper_without_verdicts_says_so() -> None:
    found = Outcome([], TOPICS)
    assert found.counts == "Of 0 claims about runs none is decided." and found.parts == []


@pytest.mark.parametrize(
    ("words", "part", "text"),
    [
        ([YES, YES, OPEN], "Holds", "error (2 hold, 1 undecided)"),
        ([YES, NO, NO, ABSENT], "Holds in part", "error (1 holds, 2 do not, 1 not run)"),
        ([NO, ABSENT, ABSENT], "Does not hold", "error (1 does not, 2 not run)"),
        ([NO, OPEN, OPEN], "Undecided here", "error (1 does not, 2 undecided)"),
        ([YES, OPEN, ABSENT], "Holds", "error (1 holds, 1 undecided, 1 not run)"),
        ([OPEN, ABSENT], "Undecided here", "error (1 undecided, 1 not run)"),
        ([ABSENT, ABSENT], "Has not run", "error (2)"),
    ],
)
def test_a_topic_stands_where_most_is_said_of_it(words: list[Word], part: str, text: str) -> None:
    found = Topic.of("error", [verdict(f"P{index}", word) for index, word in enumerate(words)])
    assert (found.part, found.text) == (part, text)


def test_the_topics_of_most_claims_come_first() -> None:
    topics = {f"topic {index}": [f"P{index}*"] for index in range(1, 4)}
    verdicts = [
        verdict(f"P{index}{letter}", Word.REPRODUCED) for index in range(1, 4) for letter in "abc"[:index]
    ]
    assert Outcome(verdicts, topics).parts == [
        ("Holds", "topic 3 (3 hold), topic 2 (2 hold), topic 1 (1 holds)")
    ]


@pytest.mark.parametrize("paper", read_papers(RESULTS), ids=lambda each: each.name)
def test_nearly_every_claim_about_runs_has_a_topic_and_every_topic_a_claim(paper: Paper) -> None:
    claims = [claim for each in CLAIMS if each.paper == paper.name for claim in each.found]
    outcome = Outcome([Verdict(claim, Word.NOT_RUN) for claim in claims], paper.topics)
    topics = [outcome._topic(each) for each in outcome.tried]
    assert topics.count(OTHERS) <= len(topics) / 5
    assert set(paper.topics) <= set(topics)


def test_papers_have_their_order_and_a_picture() -> None:
    papers = read_papers(RESULTS)
    assert [paper.name for paper in papers] == ["DynamiQ", "SDP4Bit", "EDGC", "AQGB"]
    assert all(paper.picture for paper in papers)


def test_no_claim_is_one_of_the_others_by_default_and_no_sentence_nests_its_parentheses() -> None:
    words = itertools.cycle((YES, NO, OPEN, ABSENT))
    for paper in read_papers(RESULTS):
        claims = [claim for each in CLAIMS if each.paper == paper.name for claim in each.found]
        outcome = Outcome(
            [Verdict(claim, word) for claim, word in zip(claims, words, strict=False)], paper.topics
        )
        assert OTHERS not in {outcome._topic(each) for each in outcome.tried}, paper.name
        said = " ".join(text for _, text in outcome.parts)
        assert not re.search(r"\([^)]*\(", said), paper.name


def test_each_paper_tells_what_its_counts_do_not() -> None:
    papers = {paper.name: paper for paper in read_papers(RESULTS)}
    assert all(paper.lead.endswith(".") and len(paper.lead) < 600 for paper in papers.values())
    assert all(paper.in_short.endswith(".") and 100 < len(paper.in_short) < 500 for paper in papers.values())
    assert "search over 14 recorded settings" in papers["EDGC"].lead.partition(".")[0]


@pytest.mark.parametrize("paper", read_papers(RESULTS), ids=lambda each: each.name)
def test_a_text_that_stands_alone_has_the_numbers_of_the_claim(paper: Paper) -> None:
    claims = {claim.id: claim for each in CLAIMS if each.paper == paper.name for claim in each.found}
    for name, text in paper.texts.items():
        own, shown = (set(NUMBER.findall(each)) for each in (claims[name].says, text))
        assert own <= shown and not text.startswith(("There", "It ", "Its ", "That ")), name


def test_disturbed_times_are_of_records_that_are_there() -> None:
    names = disturbed_records(RESULTS)
    assert len(names) > 10 and all((RESULTS / name).is_dir() for name in names)
