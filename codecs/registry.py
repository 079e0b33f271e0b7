"""All codecs by name. A new codec is one file in this folder, its options in `options`, and one YAML.

PyTorch is not imported until a codec's class is requested; `codec_options` lists the settings without it.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from gradwire.codecs import options
from gradwire.codecs.fields import check_fields, check_names, plain, rules_of
from gradwire.codecs.options.common import ENTRIES, CodecEntry, CommonOptions, check_globs
from gradwire.codecs.plugins import find

if TYPE_CHECKING:
    from gradwire.codecs.interface import Codec


def _entries() -> Iterator[tuple[str, CodecEntry]]:
    """The entries of each module of options, in an order that does not depend on earlier imports."""
    for module in pkgutil.iter_modules(options.__path__, f"{options.__name__}."):
        importlib.import_module(module.name)
        yield from [item for item in ENTRIES.items() if item[1].options.__module__ == module.name]


OWN: Mapping[str, CodecEntry] = dict(_entries())
"""The codecs of this package by name."""


class _Classes(Mapping[str, "type[Codec]"]):
    """All codecs' classes by name, including registered ones; a class is imported when it is looked up."""

    def __init__(self) -> None:
        self._known: dict[str, type[Codec] | None] = dict.fromkeys(OWN)

    def __getitem__(self, name: str) -> type[Codec]:
        found = self._known[name]
        if found is None:
            module, _, attribute = OWN[name].place.partition(":")
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
    """The names of all codecs, including registered ones. Imports none of them."""
    return list(_CODECS)


def codec_classes() -> dict[str, type[Codec]]:
    """Name to codec class. Each class is a dataclass whose fields are its configuration."""
    return dict(_CODECS)


def codec_options(name: str) -> type:
    """The dataclass of a codec's settings: its options class for this package's codecs, otherwise the codec
    class itself. Raises ValueError for an unknown name."""
    return OWN[name].options if name in OWN else codec_class(name)


def are_one_class(first: str, second: str) -> bool:
    """True if two names of this package's codecs stand for one class, as `mxfp8` and `mxfp4` do."""
    return {first, second} <= OWN.keys() and OWN[first].place == OWN[second].place


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
    """The class of a codec's name: one of `codec_classes()`, or a plug-in (see `plugins`). Raises ValueError
    for an unknown name."""
    return find("codec", name, _CODECS, "<module>:<class>", _checked)


@lru_cache(maxsize=64)
def _checked(found: Any, name: str) -> type[Codec]:
    """`found`, if it is a valid codec class. Raises ValueError naming what is missing."""
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

    Raises ValueError naming the field, its value and the allowed values. Contradictions between fields, and
    unreadable files, are only found when the codec is made.
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

    `exclude` is a list of globs: parameters whose names match one travel in bf16 instead. `ef` wraps the
    codec in error feedback. `decisions` is a file of decisions to follow, see `decision_file`. Raises
    ValueError naming the field, its value and the allowed values.
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
    followed = None if decisions is None else read_decisions(decisions)
    return with_decisions(Exclude(codec, globs) if globs else codec, followed)
