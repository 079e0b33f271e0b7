"""All codecs by name. A new codec is one entry here, one file beside this one, one YAML."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, cast

from gradwire.codecs.all_to_all import AllToAll
from gradwire.codecs.aqgb.codec import AQGB
from gradwire.codecs.decision_file import read_decisions
from gradwire.codecs.dynamiq import DynamiQ, DynamiQPlus, UniformQuantization
from gradwire.codecs.edgc.codec import EDGC
from gradwire.codecs.exact import BF16, FP32, Backend
from gradwire.codecs.fields import check_fields, check_names, plain, rules_of
from gradwire.codecs.interface import Codec
from gradwire.codecs.linear import Linear
from gradwire.codecs.mxfp import MXFP
from gradwire.codecs.omnireduce import OmniReduce
from gradwire.codecs.onebit import OneBit
from gradwire.codecs.optimus_cc import OptimusCC
from gradwire.codecs.plugins import find
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.qsgd import QSGD
from gradwire.codecs.randomk import RandomK
from gradwire.codecs.terngrad import TernGrad
from gradwire.codecs.tfp import TFP
from gradwire.codecs.thc import THC
from gradwire.codecs.topk import TopK
from gradwire.codecs.wrappers.decisions import with_decisions
from gradwire.codecs.wrappers.exclude import Exclude, check_globs
from gradwire.codecs.wrappers.feedback import ErrorFeedback
from gradwire.codecs.wrappers.wrapper import CommonOptions

_CODECS: dict[str, type[Codec]] = {
    "fp32": FP32,
    "bf16": BF16,
    "backend": Backend,
    "dynamiq": DynamiQ,
    "dynamiq_plus": DynamiQPlus,
    "uniform": UniformQuantization,
    "mxfp8": MXFP,
    "mxfp6": MXFP,
    "mxfp4": MXFP,
    "thc": THC,
    "omnireduce": OmniReduce,
    "qsgd": QSGD,
    "tfp": TFP,
    "aqgb": AQGB,
    "powersgd": PowerSGD,
    "edgc": EDGC,
    "optimus_cc": OptimusCC,
    "terngrad": TernGrad,
    "onebit": OneBit,
    "topk": TopK,
    "randomk": RandomK,
    "linear": Linear,
    "all_to_all": AllToAll,
}


RENAMED = {"native": "backend"}
"""Names that codecs had before, which recorded runs still have, to their new ones."""


def codec_classes() -> dict[str, type[Codec]]:
    """Name to codec class. Each class is a dataclass whose fields are its configuration."""
    return dict(_CODECS)


def register_codec(codec_class: type[Codec]) -> type[Codec]:
    """Class decorator: make a codec defined outside this package known by its default `name`.

    Raises ValueError when the name is taken by another class.
    """
    name = codec_class().name
    if _CODECS.setdefault(name, codec_class) is not codec_class:
        raise ValueError(f"codec name {name!r} is taken by {_CODECS[name].__qualname__}; choose another")
    return codec_class


def codec_class(name: str) -> type[Codec]:
    """The class of a codec's name: one of `codec_classes()`, or a plug-in (`plugins`). Raises ValueError."""
    if name in RENAMED:
        raise ValueError(f"codec={name} has a new name: use codec={RENAMED[name]}")
    return find("codec", name, _CODECS, "<module>:<class>", _checked)


@lru_cache(maxsize=64)
def _checked(found: Any, name: str) -> type[Codec]:
    """`found`, which is to be a codec's class. Raises ValueError saying what it lacks."""
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


def make_codec(
    name: str, *, exclude: object = (), ef: bool = False, decisions: str | None = None, **fields: object
) -> Codec:
    """The codec called `name`, configured by its dataclass fields.

    `exclude` is a list of globs: parameters whose names match one travel in bf16 instead. `ef` puts error
    feedback around it. `decisions` is a file of decisions to follow, see `decision_file`. Raises ValueError
    naming the field, its value and what is allowed.
    """
    made = codec_class(name)
    known = rules_of(made)
    check_names([*known, *rules_of(CommonOptions)], fields, "codec", f"codec={name}")
    check_fields(made, fields, "codec")
    globs = check_globs(exclude)
    check_fields(CommonOptions, {"exclude": list(globs), "ef": ef, "decisions": decisions}, "codec")
    codec: Codec = cast(Any, made)(name=name, **{field: plain(value) for field, value in fields.items()})
    if ef:
        codec = ErrorFeedback(codec)
    replayed = None if decisions is None else read_decisions(decisions)
    return with_decisions(Exclude(codec, globs) if globs else codec, replayed)
