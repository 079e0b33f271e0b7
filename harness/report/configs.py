"""The settings of runs: which ones differ between runs, and whether they may."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradwire.harness.network.settings import SHARED
from gradwire.harness.record.identity import LATER, WITHOUT_EFFECT
from gradwire.harness.record.runs import Run
from gradwire.harness.report.names import NAMES, WORDS, name_of

Settings = dict[str, Any]
"""A resolved configuration by dotted key."""

NOT_COMPARED = (*WITHOUT_EFFECT, "hydra", "resume", "experiment", "sweeps")
"""Groups and keys that affect how a run is started, recorded or shown, not its result."""

RETIMED_AXES = ("codec", "topology", "network", "cluster", "overlap")
"""Settings, besides the axes of a sweep, in which retimed runs shown together may differ."""

BROUGHT_ALONG = ("dataset", "train", "eval", "measure")
"""Groups whose values may come with the model: its data, its recipe."""

LATER_KEYS = {"network.compute": SHARED, **LATER}
"""Keys that were added later, with the value that runs recorded without them correspond to."""

EXACT = "baseline"
"""The name that SDP4Bit (its Table 1) gives to training without compression."""

WEIGHTS = {"exact": "", "qw": "qW", "qwd": "qWD"}

WHOLE = {"": EXACT, "qWD + TLq-HS": "SDP4Bit", "qW + ULq": "ZeRO++"}
"""Combinations with names of their own."""

GROUPS = ("codec", "parallel")
"""The groups whose settings make a strategy."""

ABSENT = "absent"
MACHINE = "machine"
SEED = "seed"


def flatten(config: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested mappings as dotted keys; lists stay values."""
    flat: Settings = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def settings(run: Run) -> Settings:
    """The settings that change a run's result, the seed among them."""
    found = {key: value for key, value in flatten(run.config).items() if changes_result(key)}
    return {key: value for key, value in found.items() if (key, value) not in LATER_KEYS.items()}


def changes_result(key: str) -> bool:
    """Returns whether a dotted key is more than bookkeeping, a path to write to, or a timeout."""
    leaf = key.rsplit(".", 1)[-1]
    return not covered(key, NOT_COMPARED) and "timeout" not in leaf and not leaf.startswith("output")


def covered(key: str, axes: Sequence[str]) -> bool:
    """Returns whether `key` is in `axes` or below one of them: "codec" covers "codec.bits"."""
    return any(key == axis or key.startswith(f"{axis}.") for axis in axes)


def differing_keys(configs: Sequence[Settings]) -> list[str]:
    """The keys whose values differ; a missing key differs from any value."""
    keys = sorted({key for config in configs for key in config})
    return [key for key in keys if len({repr(config.get(key, ABSENT)) for config in configs}) > 1]


def holders_by_key(configs: Mapping[str, Settings]) -> dict[str, dict[str, list[str]]]:
    """The keys in which named configurations differ: key -> value -> names that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for key in differing_keys(list(configs.values())):
        holders = found.setdefault(key, {})
        for name, config in configs.items():
            holders.setdefault(str(config.get(key, ABSENT)), []).append(name)
    return found


def check_comparable(runs: Sequence[Run], axes: Sequence[str]) -> None:
    """Raise ValueError unless the runs only differ in `axes`, the seed, and settings that change no result.

    The machine counts as a setting, because times of different hardware are not comparable, and neither are
    the last bits of losses.
    """
    conflicts = _conflicts(runs, (*axes, SEED))
    if not conflicts:
        return
    parts = []
    for key, holders in conflicts.items():
        values = "; ".join(f"{value} in {some_names(names)}" for value, names in holders.items())
        parts.append(f"{key} ({values})")
    fix = [*axes, *dict.fromkeys(key.split(".", 1)[0] for key in conflicts)]
    raise ValueError(
        f"runs that differ in more than the axes swept ({', '.join(axes) or 'none'}) cannot be compared: "
        f"{', '.join(parts)}. Compare fewer runs, or name the axis: axes=[{','.join(fix)}]"
    )


def _conflicts(runs: Sequence[Run], allowed: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """The keys that prevent a comparison: key -> value -> names of the runs that have it."""
    configs = [settings(run) | _machine(run) for run in runs]
    conflicts = {}
    for key in differing_keys(configs):
        holders: dict[str, list[str]] = {}
        for run, config in zip(runs, configs, strict=True):
            # A run that failed has no summary, hence no machine to compare.
            if run.summary is not None or not covered(key, (MACHINE,)):
                holders.setdefault(str(config.get(key, ABSENT)), []).append(run.name)
        if len(holders) > 1 and not covered(key, allowed):
            conflicts[key] = holders
    return conflicts


def _machine(run: Run) -> Settings:
    return flatten({MACHINE: run.summary.machine}) if run.summary else {}


def some_names(names: Sequence[str], limit: int = 3) -> str:
    """The first names, and the number of the others."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def labels(configs: Sequence[Settings], axes: Sequence[str] = ()) -> list[str]:
    """A short, unique name for each config: its codec, then the settings that differ, axes first.

    A group shows its `name`, and those of its other keys that differ among configs with the same name.
    Settings that follow from the model, such as its data, are not named. If SDP4Bit names the strategies of
    all configs, these names replace codec and parallelism.
    """
    return _labels(configs, axes, As(" ", _chosen, _assigned))


def labels_in_words(configs: Sequence[Settings], axes: Sequence[str] = ()) -> list[str]:
    """These names in the words of the field, as pictures have them: `DynamiQ, 5 bits`. Where words would not
    tell configs apart that names do, they are the names."""
    plain, words = labels(configs, axes), _labels(configs, axes, As(", ", _chosen_in_words, _in_words))
    return words if len(set(words)) == len(set(plain)) else plain


class As(NamedTuple):
    """The form of a label's parts."""

    separator: str  # between the parts of one group
    choice: Callable[[str, Any], str]  # of a group and the name of what was chosen
    setting: Callable[[str, Any], str]  # of a dotted key and its value


def _assigned(key: str, value: Any) -> str:
    return f"{key.rsplit('.', 1)[-1]}={value}"


def _chosen(head: str, name: Any) -> str:
    return str(name)


def _chosen_in_words(head: str, name: Any) -> str:
    return name_of(head, name) if head in NAMES else str(name).replace("_", " ")


def _in_words(key: str, value: Any) -> str:
    whole, leaf = key.replace(".", "_"), key.rsplit(".", 1)[-1].replace("_", " ")
    try:
        return f"{leaf} none" if value is None else name_of(whole if whole in WORDS else key, value)
    except (TypeError, ValueError):  # a word where numbers are usual
        return f"{leaf} {value}"


def _labels(configs: Sequence[Settings], axes: Sequence[str], written: As) -> list[str]:
    heads = {"codec"} | {key.split(".", 1)[0] for key in differing_keys(configs)}
    heads -= {head for head in BROUGHT_ALONG if "model" in heads and _follows_from_model(configs, head)}
    first = [axis.split(".", 1)[0] for axis in ("codec", *axes)]
    ordered = sorted(heads, key=lambda head: (first.index(head) if head in first else len(first), head))
    named = strategies(configs)
    if named is not None:
        rest = [head for head in ordered if head not in GROUPS]
        heads_of = [
            [_strategy(config, name, configs, named, written)]
            for config, name in zip(configs, named, strict=True)
        ]
    else:
        rest, heads_of = ordered, [[] for _ in configs]
    described = [
        [*first, *(_describe(config, head, configs, written) for head in rest)]
        for config, first in zip(configs, heads_of, strict=True)
    ]
    return [", ".join(filter(None, parts)) or "run" for parts in described]


def _strategy(
    config: Settings, name: str, configs: Sequence[Settings], names: Sequence[str], written: As
) -> str:
    """A strategy's part of a label: its name, and in what it differs from others of the same name."""
    alike = [other for other, own in zip(configs, names, strict=True) if own == name]
    keys = [key for key in differing_keys(alike) if covered(key, GROUPS) and key in config]
    chosen = written.choice("experiment", name)
    return written.separator.join([chosen, *(written.setting(key, config[key]) for key in keys)])


def _follows_from_model(configs: Sequence[Settings], head: str) -> bool:
    """Returns whether configs with the same model have the same settings of another group."""
    own: dict[str, set[str]] = {}
    for config in configs:
        settings = {key: value for key, value in config.items() if covered(key, (head,))}
        own.setdefault(str(config.get("model.name")), set()).add(repr(sorted(settings.items())))
    return len(own) > 1 and all(len(found) == 1 for found in own.values())


def _describe(config: Settings, head: str, configs: Sequence[Settings], written: As) -> str:
    """One group's part of a label."""
    name = config.get(f"{head}.name")
    alike = [other for other in configs if other.get(f"{head}.name") == name]
    keys = [key for key in differing_keys(alike) if covered(key, (head,)) and key in config]
    values = [written.setting(key, config[key]) for key in keys]
    if name is None and head in config:
        is_choice = head in ("codec", "topology", "network")
        return written.choice(head, config[head]) if is_choice else written.setting(head, config[head])
    return written.separator.join([written.choice(head, name)] * (name is not None) + values)


def strategy(config: Mapping[str, Any]) -> str | None:
    """SDP4Bit's name of the strategy of a run's settings, ignoring quantization groups; None if it has
    none.
    """
    if config.get("parallel.name") != "sharded" or config.get("parallel.weights") not in WEIGHTS:
        return None
    gradients = _gradients(config)
    if gradients is None or config.get("parallel.weight_bits", 4) != 4:
        return None
    both = " + ".join(filter(None, (WEIGHTS[config["parallel.weights"]], gradients)))
    return WHOLE.get(both, both)


def _gradients(config: Mapping[str, Any]) -> str | None:
    """The part of a strategy's name for its gradients; empty for float32."""
    if config.get("codec.name") == "fp32":
        return ""
    if config.get("codec.name") != "all_to_all" or config.get("codec.bits_node") != 4:
        return None
    smoothed = config.get("codec.hadamard") != "none"
    names = {(4, False): "ULq", (8, False): "TLq", (8, True): "TLq-HS"}
    return names.get((config.get("codec.bits_local"), smoothed))  # type: ignore[arg-type]


def strategies(configs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Each config's strategy; None unless there are several, and all have one."""
    found = [name for name in map(strategy, configs) if name is not None]
    return found if len(found) == len(configs) and len(set(found)) > 1 else None
