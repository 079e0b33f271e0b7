"""All codecs by name. A new codec is one entry here, one file beside this one, one YAML."""

from __future__ import annotations

from gradwire.codecs.dynamiq import DynamiQ, DynamiQPlus, UniformQuantization
from gradwire.codecs.exact import BF16, FP32
from gradwire.codecs.exclude import Exclude, check_globs
from gradwire.codecs.feedback import with_feedback
from gradwire.codecs.fields import check_fields, check_names, did_you_mean, rules_of, shortened
from gradwire.codecs.interface import Codec
from gradwire.codecs.mxfp import MXFP
from gradwire.codecs.native import Native
from gradwire.codecs.omnireduce import OmniReduce
from gradwire.codecs.onebit import OneBit
from gradwire.codecs.options import CommonOptions
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.qsgd import QSGD
from gradwire.codecs.randomk import RandomK
from gradwire.codecs.terngrad import TernGrad
from gradwire.codecs.tfp import TFP
from gradwire.codecs.thc import THC
from gradwire.codecs.topk import TopK

_CODECS: dict[str, type] = {
    "fp32": FP32,
    "bf16": BF16,
    "native": Native,
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
    "powersgd": PowerSGD,
    "terngrad": TernGrad,
    "onebit": OneBit,
    "topk": TopK,
    "randomk": RandomK,
}


def codec_classes() -> dict[str, type]:
    """Name to codec class. Each class is a dataclass whose fields are its configuration."""
    return dict(_CODECS)


def register_codec(codec_class: type) -> type:
    """Class decorator: make a codec defined outside this package known by its default `name`.

    Raises ValueError when the name is taken by another class.
    """
    name = codec_class().name
    if _CODECS.setdefault(name, codec_class) is not codec_class:
        raise ValueError(f"codec name {name!r} is taken by {_CODECS[name].__qualname__}; choose another")
    return codec_class


def make_codec(name: str, *, exclude: object = (), ef: bool = False, **fields: object) -> Codec:
    """The codec called `name`, configured by its dataclass fields.

    `exclude` is a list of globs: parameters whose names match one travel in bf16 instead. `ef` puts error
    feedback around it. Raises ValueError naming the field, its value and what is allowed.
    """
    if name not in _CODECS:
        near = did_you_mean(name, _CODECS) if isinstance(name, str) else ""
        raise ValueError(
            f"codec={shortened(name)} is unknown; choose one of {', '.join(sorted(_CODECS))}{near}"
        )
    made = _CODECS[name]
    known = rules_of(made)
    check_names([*known, *rules_of(CommonOptions)], fields, "codec", f"codec={name}")
    check_fields(made, fields, "codec")
    globs = check_globs(exclude)
    check_fields(CommonOptions, {"exclude": list(globs), "ef": ef}, "codec")
    codec: Codec = made(name=name, **fields)
    if ef:
        codec = with_feedback(codec)
    return Exclude(codec, globs) if globs else codec
