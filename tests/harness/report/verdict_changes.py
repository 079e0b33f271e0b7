"""The table of verdicts before and after the rules for informative ones, `docs/verdicts.md`.

`python tests/harness/report/verdict_changes.py` writes it anew from `earlier_verdicts.csv`, which has the
verdicts by the predicates alone, and from the records as they are judged now.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from gradwire.harness.report.claims.papers import CLAIMS
from gradwire.harness.report.claims.verdict import Verdict
from gradwire.harness.report.evaluations import Evaluations, collect
from gradwire.harness.report.tables import escaped
from gradwire.harness.sweeps.known import known_sweeps

ROOT = Path(__file__).resolve().parents[3]
EARLIER, PAGE = Path(__file__).with_name("earlier_verdicts.csv"), ROOT / "docs" / "verdicts.md"

HEAD = """# Verdicts, before and after

Until the rules of [report.md](report.md#verdicts) a predicate alone decided a claim: "reproduced" said that
it was true of a record, whatever the effect, the seeds' spread and what other codecs did. This table has each
claim's verdict by its former predicate, the one by the rules, and why it is what it is.
`python tests/harness/report/verdict_changes.py` makes it. ‡: the claim was written, or changed, after the
record that it is judged on, as all were that are older than the rules. New claims have no earlier verdict.
"""


def earlier() -> dict[str, str]:
    """The former verdict of each claim by its id."""
    with EARLIER.open(newline="") as lines:
        return {row["claim"]: row["verdict"] for row in csv.DictReader(lines)}


def reason(verdict: Verdict) -> str:
    """The reason for a verdict, in words."""
    told = {
        "by construction": "an identity, or arithmetic of our own model, which no run can refute",
        "consistent": "the paper's figures agree with one another; nothing has been run",
        "inconsistent": "the paper's figures disagree; nothing has been run",
    }
    return told.get(verdict.word) or verdict.detail


def page(found: Evaluations) -> str:
    """The text of the page."""
    before = earlier()
    lines = [HEAD]
    for section in found.sections:
        judged = {verdict.claim.id: verdict for verdict in section.verdicts}
        kept = Counter(before[name] for name in judged if name in before)
        counts = ", ".join(f"{number} {word}" for word, number in kept.items())
        lines += [f"## {section.paper.name}", "", f"Before: {counts}.", ""]
        lines += ["| claim | before | now | why |", "| --- | --- | --- | --- |"]
        for name, verdict in judged.items():
            row = (name, before.get(name, "–"), verdict.short, reason(verdict) or "–")
            lines.append(f"| {' | '.join(map(escaped, row))} |")
        lines.append("")
    return "\n".join(lines)


def claims_without_verdict() -> list[str]:
    """The ids of former claims that are no claims now."""
    return sorted(earlier().keys() - {claim.id for claims in CLAIMS for claim in claims.found})


if __name__ == "__main__":
    PAGE.write_text(page(collect(ROOT / "results", known_sweeps())))
