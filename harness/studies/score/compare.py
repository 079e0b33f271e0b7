"""The table of scores, checkpoints by tasks, as in EDGC's Table IV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.report.configs import ABSENT, Settings, changes_result, flatten, labels
from gradwire.harness.report.tables import Column, Table, figures_table
from gradwire.harness.studies.comparison import Compared, Entry, figure_columns
from gradwire.harness.studies.score.choose import LABELS
from gradwire.harness.studies.score.study import Scored, ScoredValue, Scores, score_rows
from gradwire.harness.timing.measure.metrics import METRICS

NOTES = (
    "Each figure with its standard error over the documents. acc: the ending of the highest likelihood is "
    "right; acc_norm: that of the highest likelihood per character. A model whose predictions are all but "
    "alike chooses the ending with the fewest tokens, so that it does not score what chance would.",
)

PLUS_MINUS = " ± "


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A table for each metric, with a row for each checkpoint, and remarks that affect its interpretation."""
    scores: list[Scores] = [entry.record for entry in entries]
    names = row_names(scores, axes)
    further = figure_columns(entries)
    rows = [
        {"checkpoint": name, **row, "lm_eval": each.versions.get("lm-eval")}
        | {column.at: each.content()[column.at] for column in further}
        for name, each in zip(names, scores, strict=True)
        for row in score_rows(each.content())
    ]
    metrics = dict.fromkeys(
        metric for each in scores for found in each.tasks.values() for metric in found.metrics
    )
    tables = [_table(metric, names, scores) for metric in metrics]
    tables += [_part_table(field, metric, names, scores) for field, metric in Scored.columns().items()]
    if further:
        lines = [([name], each.content()) for name, each in zip(names, scores, strict=True)]
        tables.append(figures_table("Checkpoints", ["checkpoint"], lines, further))
    likelihood = NOTES if any(found.requests for each in scores for found in each.tasks.values()) else ()
    return Compared(tables, rows, [*likelihood, *_remarks(names, scores)])


def _part_table(field: str, metric: str, names: Sequence[str], scores: Sequence[Scores]) -> Table:
    """A figure of each task, with a row for each checkpoint."""
    tasks = list(dict.fromkeys(task for each in scores for task in each.tasks))
    columns = [Column(metric, task, LABELS.get(task, task)) for task in tasks]
    lines = [
        ([name], {task: getattr(found, field) for task, found in each.tasks.items()})
        for name, each in zip(names, scores, strict=True)
    ]
    return figures_table(METRICS[metric].heading, ["checkpoint"], lines, columns)


def _table(metric: str, names: Sequence[str], scores: Sequence[Scores]) -> Table:
    with_it = {task for each in scores for task, found in each.tasks.items() if metric in found.metrics}
    tasks = [task for task in (*LABELS, *sorted(with_it - {*LABELS})) if task in with_it]
    header = [LABELS.get(task, task) for task in tasks]
    cells = [
        [
            _cell(metric, each.tasks[task].metrics.get(metric) if task in each.tasks else None)
            for task in tasks
        ]
        for each in scores
    ]
    shown = [(name, row) for name, row in zip(names, cells, strict=True) if any(cell != "–" for cell in row)]
    named = METRICS[metric]
    title = named.heading if named.label == metric else f"{named.heading} ({metric})"
    return Table(title, ["checkpoint", *header], [[name, *row] for name, row in shown])


def _cell(metric: str, value: ScoredValue | None) -> str:
    """A cell such as `41.75 ± 0.98`: two digits after the point, as in the papers, or four for losses and
    correlations."""
    if value is None:
        return "–"
    shown = METRICS[metric].shown
    digits = 2 if shown.unit == "%" else 4
    parts = [value.value] if value.stderr is None else [value.value, value.stderr]
    return PLUS_MINUS.join(f"{part * shown.factor:.{digits}f}" for part in parts)


def _remarks(names: Sequence[str], scores: Sequence[Scores]) -> list[str]:
    """Remarks on tasks scored on fewer or truncated documents, and on tasks that were not scored."""
    remarks = [*dict.fromkeys(each.note for each in scores if each.note), *_differences(scores)]
    for task in dict.fromkeys(task for each in scores for task in each.tasks):
        found = [
            (name, each.tasks[task]) for name, each in zip(names, scores, strict=True) if task in each.tasks
        ]
        counts = Counter((one.documents, one.available) for _, one in found)
        if any(documents != available for documents, available in counts):
            counted = ", ".join(f"{documents} of {available}" for documents, available in counts)
            what = "documents" if any(one.requests for _, one in found) else "rows"
            remarks.append(f"{task}: {counted} {what}.")
        for name, one in found:
            if one.left_out:
                remarks.append(
                    f"{task}, {name}: documents left out: {one.left_out}, with an ending that is longer "
                    "than the whole context, which lm-eval cannot score."
                )
            if one.cut:
                remarks.append(
                    f"{task}, {name}: the beginnings of {100 * one.cut:.1f} % of the requests are cut off to "
                    "fit into the model's context."
                )
    return remarks


def _differences(scores: Sequence[Scores]) -> list[str]:
    """Remarks on differences that make rows less comparable than they look."""
    found = []
    for task in dict.fromkeys(task for each in scores for task in each.tasks):
        own = [each.tasks[task] for each in scores if task in each.tasks]
        if len({(one.data, one.version) for one in own}) > 1:
            found.append(f"{task}: the rows are of different data, or of different versions of the task.")
    for what, values in (
        ("versions of lm-eval", {each.versions.get("lm-eval", "?") for each in scores}),
        ("sources (code_hash)", {each.code_hash for each in scores}),
    ):
        if len(values) > 1:
            found.append(f"The rows were made with different {what}: {', '.join(sorted(values))}.")
    return found


def row_names(scores: Sequence[Scores], axes: Sequence[str] = ()) -> list[str]:
    """A unique name for each checkpoint, made from its training settings if these are known."""
    known = [_trained(each.trained) for each in scores if each.trained]
    trained = iter(labels(known, [axis for axis in axes if axis != "checkpoint"]))
    names = [next(trained) if each.trained else each.checkpoint for each in scores]
    if len({each.get("model.name", ABSENT) for each in known}) == 1:
        names = [
            f"{each.trained['model']['name']}, {name}" if each.trained else name
            for name, each in zip(names, scores, strict=True)
        ]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} ({each.checkpoint})" if name in twice else name
        for name, each in zip(names, scores, strict=True)
    ]


def _trained(config: Mapping[str, Any]) -> Settings:
    return {key: value for key, value in flatten(config).items() if changes_result(key)}
