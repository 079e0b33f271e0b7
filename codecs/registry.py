"""All codecs by name. A new codec is one entry here, one file beside this one, one YAML.

Nothing here imports PyTorch until a codec's class is asked for: `codec_options` says what can be set.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gradwire.codecs.fields import check_fields, check_names, plain, rules_of
from gradwire.codecs.options.common import CommonOptions, NoOptions, check_globs
from gradwire.codecs.options.dynamiq import DynamiQOptions, DynamiQPlusOptions, UniformOptions
from gradwire.codecs.options.linear import AllToAllOptions, LinearOptions
from gradwire.codecs.options.low_rank import EDGCOptions, OptimusCCOptions, PowerSGDOptions
from gradwire.codecs.options.quantized import (
    AQGBOptions,
    MXFPOptions,
    OneBitOptions,
    QSGDOptions,
    TernGradOptions,
    TFPOptions,
    THCOptions,
)
from gradwire.codecs.options.sparse import OmniReduceOptions, RandomKOptions, TopKOptions
from gradwire.codecs.plugins import find

if TYPE_CHECKING:
    from gradwire.codecs.interface import Codec


class Own(NamedTuple):
    """A codec of this package: where its class is, below `gradwire.codecs`, and the class of its options.

    Without `options` the class itself is imported for its fields, and PyTorch with it.
    """

    place: str
    options: type | None = None


_OWN = {
    "fp32": Own("exact:FP32", NoOptions),
    "bf16": Own("exact:BF16", NoOptions),
    "backend": Own("exact:Backend", NoOptions),
    "dynamiq": Own("dynamiq.codec:DynamiQ", DynamiQOptions),
    "dynamiq_plus": Own("dynamiq.variants:DynamiQPlus", DynamiQPlusOptions),
    "uniform": Own("dynamiq.variants:UniformQuantization", UniformOptions),
    "mxfp8": Own("mxfp.codec:MXFP", MXFPOptions),
    "mxfp6": Own("mxfp.codec:MXFP", MXFPOptions),
    "mxfp4": Own("mxfp.codec:MXFP", MXFPOptions),
    "thc": Own("thc.codec:THC", THCOptions),
    "omnireduce": Own("omnireduce.codec:OmniReduce", OmniReduceOptions),
    "qsgd": Own("qsgd:QSGD", QSGDOptions),
    "tfp": Own("tfp.codec:TFP", TFPOptions),
    "aqgb": Own("aqgb.codec:AQGB", AQGBOptions),
    "powersgd": Own("powersgd:PowerSGD", PowerSGDOptions),
    "edgc": Own("edgc.codec:EDGC", EDGCOptions),
    "optimus_cc": Own("optimus_cc.codec:OptimusCC", OptimusCCOptions),
    "terngrad": Own("terngrad:TernGrad", TernGradOptions),
    "onebit": Own("onebit:OneBit", OneBitOptions),
    "topk": Own("topk:TopK", TopKOptions),
    "randomk": Own("randomk:RandomK", RandomKOptions),
    "linear": Own("linear.codec:Linear", LinearOptions),
    "all_to_all": Own("all_to_all:AllToAll", AllToAllOptions),
}


class _Classes(Mapping[str, "type[Codec]"]):
    """Every codec's class by name, those of `register_codec` among them; imported when it is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, type[Codec] | None] = dict.fromkeys(_OWN)

    def __getitem__(self, name: str) -> type[Codec]:
        found = self._known[name]
        if found is None:
            module, _, attribute = _OWN[name].place.partition(":")
            found = cast(
                "type[Codec]", getattr(importlib.import_module(f"gradwire.codecs.{module}"), attribute)
            )
            self._known[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known  # a Mapping's own would import the class

    def add(self, name: str, codec_class: type[Codec]) -> None:
        self._known[name] = codec_class


_CODECS = _Classes()


def codec_names() -> list[str]:
    """The names of all codecs, those of `register_codec` among them. Imports none of them."""
    return list(_CODECS)


def codec_classes() -> dict[str, type[Codec]]:
    """Name to codec class. Each class is a dataclass whose fields are its configuration."""
    return dict(_CODECS)


def codec_options(name: str) -> type:
    """A dataclass of the fields of the codec called `name`: its options, or, without these, its class.

    Raises ValueError for a name that there is not.
    """
    return (_OWN[name].options if name in _OWN else None) or codec_class(name)


def are_one_class(first: str, second: str) -> bool:
    """Whether two codecs of this package are one class, as `mxfp8` and `mxfp4` are."""
    return first in _OWN and second in _OWN and _OWN[first].place == _OWN[second].place


def register_codec(codec_class: type[Codec]) -> type[Codec]:
    """Class decorator: make a codec defined outside this package known by its default `name`.

    Raises ValueError when the name is taken by another class.
    """
    name = codec_class().name
    if name not in _CODECS:
        _CODECS.add(name, codec_class)
    elif _CODECS[name] is not codec_class:
        raise ValueError(f"codec name {name!r} is taken by {_CODECS[name].__qualname__}; choose another")
    return codec_class


def codec_class(name: str) -> type[Codec]:
    """The class of a codec's name: one of `codec_classes()`, or a plug-in (`plugins`). Raises ValueError."""
    return find("codec", name, _CODECS, "<module>:<class>", _checked)


@lru_cache(maxsize=64)
def _checked(found: Any, name: str) -> type[Codec]:
    """`found`, which is to be a codec's class. Raises ValueError saying what it lacks."""
    from gradwire.codecs.interface import Codec

    given = f"codec={name}"
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or not issubclass(found, Codec):
        raise ValueError(
            f"{given} is not a codec: it must be a class decorated with @dataclass and derived from "
            "gradwire.Codec or gradwire.HopCodec"
        )
    fields = {field.name: field for field in dataclasses.fields(found) if field.init}
    if "name" not in fields:
        raise ValueError(f'{given} is not a codec: its dataclass needs a field `name: str = "<name>"`')
    for field in fields.values():
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{given} is not a codec: its field {field.name} needs a default")
    common = [field.name for field in dataclasses.fields(CommonOptions) if field.name in fields]
    if common:
        raise ValueError(f"{given} is not a codec: every codec has an option {common[0]}; rename its field")
    try:
        cast(Any, found)(name=name)
        rules_of(found)
    except Exception as error:
        raise ValueError(
            f"{given} cannot be made: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    return found


def check_codec(
    name: str, *, exclude: object = (), ef: bool = False, decisions: object = None, **fields: object
) -> None:
    """Checks what `make_codec` would be given, field by field, without importing a codec of this package.

    Raises ValueError naming the field, its value and what is allowed. What contradicts another field, and a
    file that cannot be read, are refused when the codec is made.
    """
    options = codec_options(name)
    check_names([*rules_of(options), *rules_of(CommonOptions)], fields, "codec", f"codec={name}")
    check_fields(options, fields, "codec")
    common = {"exclude": check_globs(exclude), "ef": ef, "decisions": decisions}
    check_fields(CommonOptions, common, "codec")


def make_codec(
    name: str, *, exclude: object = (), ef: bool = False, decisions: str | None = None, **fields: object
) -> Codec:
    """The codec called `name`, configured by its dataclass fields.

    `exclude` is a list of globs: parameters whose names match one travel in bf16 instead. `ef` puts error
    feedback around it. `decisions` is a file of decisions to follow, see `decision_file`. Raises ValueError
    naming the field, its value and what is allowed.
    """
    from gradwire.codecs.decision_file import read_decisions
    from gradwire.codecs.wrappers.decisions import with_decisions
    from gradwire.codecs.wrappers.exclude import Exclude
    from gradwire.codecs.wrappers.feedback import ErrorFeedback

    made = codec_class(name)
    check_codec(name, exclude=exclude, ef=ef, decisions=decisions, **fields)
    globs = check_globs(exclude)
    codec: Codec = cast(Any, made)(name=name, **{field: plain(value) for field, value in fields.items()})
    if ef:
        codec = ErrorFeedback(codec)
    replayed = None if decisions is None else read_decisions(decisions)
    return with_decisions(Exclude(codec, globs) if globs else codec, replayed)
