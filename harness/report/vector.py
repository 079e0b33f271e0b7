"""Vector pictures in their smallest form, which shows itself on a white page and on a dark one.

Matplotlib's SVG repeats each style, names each group and writes coordinates to a millionth of a point. In the
form kept here a picture is a fifth of that, and a rule of style turns print's colours into the dark page's: a
file is enough for both, see `style.FORMS`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from gradwire.harness.report.style import DARK, PRINT

SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"

SCALE = 100
"""Coordinates are whole multiples of a point's hundredth, which no screen shows."""

INHERITED = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-linejoin",
    "stroke-linecap",
    "stroke-dasharray",
    "stroke-dashoffset",
    "fill-opacity",
    "stroke-opacity",
)
"""Properties that a group hands down to what is in it."""

_NUMBER = re.compile(r"-?\d*\.?\d+(?:[eE]-?\d+)?")
_PATH = re.compile(r"[A-Za-z]|-?\d*\.?\d+(?:[eE]-?\d+)?")
_POINTS = {"M": 1, "L": 1, "Q": 2, "C": 3}
"""Points that each of matplotlib's commands takes, in absolute coordinates."""

_FONT = re.compile(r"#?DejaVuSans-")
_SHIFT = re.compile(r"translate\(([-\d.]+) ([-\d.]+)\)")


def dark_rules(place: str = "") -> str:
    """Rules of style that give pictures the dark page's colours: those in what `place` selects, or all."""
    colors = {PRINT.ground: DARK.ground, PRINT.grid: DARK.grid}
    colors |= {color: DARK.colors[hue] for hue, color in PRINT.colors.items()}
    before = f"{place} " if place else ""
    return "".join(
        f'{before}[{key}="{color.lower()}"]{{{key}:{dark.lower()}}}'
        for color, dark in colors.items()
        for key in ("fill", "stroke")
    )


def compact(text: str) -> str:
    """Matplotlib's SVG without what shows nothing, for both kinds of pages. The text of one that is compact
    already is returned as it is.

    Raises ValueError for a text that is not XML.
    """
    if not text.startswith("<?xml"):
        return text
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the picture is not XML ({error})") from None
    _remove(root, f"{SVG}metadata")
    _remove(root, f"{SVG}style")
    for element in root.iter():
        _simplify(element)
    used = {name for element in root.iter() for name in _references(element)}
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    _flatten(root)
    for element in root.iter():
        _hand_up(element)
    _flatten(root)
    root.attrib |= {"fill": PRINT.colors["ink"], "stroke-linejoin": "round"}
    style = Element(f"{SVG}style")
    style.text = f"@media screen and (prefers-color-scheme:dark){{{dark_rules()}}}"
    root.insert(0, style)
    return _written(root)


def _remove(root: Element, tag: str) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag == tag]:
            parent.remove(child)


def _simplify(element: Element) -> None:
    """Styles as attributes, short names of letters, rounded coordinates."""
    element.text = element.tail = None
    attributes = element.attrib
    for entry in filter(None, (attributes.pop("style", "")).split(";")):
        key, _, value = entry.partition(":")
        attributes[key.strip()] = value.strip().replace(", ", ",")
    if LINK in attributes:
        attributes["href"] = attributes.pop(LINK)
    for key in ("id", "href"):
        if key in attributes:
            attributes[key] = _FONT.sub(lambda found: found[0][: found[0][0] == "#"] + "g", attributes[key])
    moved = _SHIFT.fullmatch(attributes.get("transform", ""))
    if element.tag == f"{SVG}use" and moved is not None and not attributes.keys() & {"x", "y"}:
        del attributes["transform"]
        attributes |= {key: value for key, value in zip("xy", moved.groups(), strict=True) if float(value)}
    for key in ("x", "y", "width", "height"):
        if key in attributes and element.tag != f"{SVG}svg":
            attributes[key] = _NUMBER.sub(lambda found: _short(float(found[0])), attributes[key])
    if "transform" in attributes:
        attributes["transform"] = _transform(attributes["transform"])
    if "d" in attributes:
        attributes["d"] = path_data(attributes["d"])


def _transform(text: str) -> str:
    """Rounds shifts; scales and turns keep their digits."""
    return re.sub(
        r"translate\([^)]*\)", lambda found: _NUMBER.sub(lambda each: _short(float(each[0])), found[0]), text
    )


def path_data(text: str) -> str:
    """A path of M, L, Q, C and z, with relative coordinates; another one is returned as it is."""
    tokens = iter(_PATH.findall(text))
    pieces, here, began = list[str](), (0, 0), (0, 0)
    for command in tokens:
        if command in "zZ":
            pieces.append("z")
            here = began
            continue
        if command not in _POINTS:
            return text
        points = [
            (round(SCALE * float(next(tokens))), round(SCALE * float(next(tokens))))
            for _ in range(_POINTS[command])
        ]
        pieces.append(_piece(command, here, points))
        here = points[-1]
        began = here if command == "M" else began
    return "".join(pieces)


def _piece(command: str, here: tuple[int, int], points: list[tuple[int, int]]) -> str:
    moves = [(x - here[0], y - here[1]) for x, y in points]
    if command == "L" and 0 in moves[0]:
        return f"v{_scaled(moves[0][1])}" if not moves[0][0] else f"h{_scaled(moves[0][0])}"
    numbers = [_scaled(number) for move in moves for number in move]
    joined = "".join(number if number[0] == "-" else f" {number}" for number in numbers)
    return f"{command.lower()}{joined.lstrip()}"


def _scaled(hundredths: int) -> str:
    return _short(hundredths / SCALE)


def _short(number: float) -> str:
    """A number to two decimals, without zeros that say nothing."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else re.sub(r"^(-?)0\.", r"\1.", text)


def _references(element: Element) -> Iterator[str]:
    for value in element.attrib.values():
        if value.startswith("#"):
            yield value[1:]
        yield from re.findall(r"url\(#([^)]+)\)", value)


def _flatten(element: Element) -> None:
    """Removes empty groups, and the borders of groups that say nothing."""
    children: list[Element] = []
    for child in element:
        _flatten(child)
        if child.tag == f"{SVG}g" and not child.attrib:
            children += list(child)
        elif child.tag != f"{SVG}g" or len(child):
            children.append(child)
    element[:] = children


def _hand_up(group: Element) -> None:
    """Moves properties that all of a group's parts have to the group."""
    parts = [part for part in group if part.tag != f"{SVG}defs"]
    if group.tag != f"{SVG}g" or not parts:
        return
    for key in INHERITED:
        values = {part.get(key) for part in parts}
        if len(values) == 1 and None not in values:
            group.attrib[key] = parts[0].attrib[key]
            for part in parts:
                del part.attrib[key]


def _written(root: Element) -> str:
    ElementTree.register_namespace("", SVG[1:-1])
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True).replace(" />", "/>")


_TAGS = {
    f"{SVG}{name}" for name in ("svg", "g", "defs", "path", "use", "rect", "clipPath", "pattern", "image")
}
_DRAWN = re.compile(r"#[\w.-]+|data:image/png;base64,[A-Za-z0-9+/=\s]*")
"""The targets that a link may have: a part of the picture, or a raster in it."""


class Inlined:
    """The pictures of one page, as elements of it, and the definitions that they share: outlines of letters,
    markers, hatches."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def element(self, text: str, says: str) -> str | None:
        """The compact picture `text` as an element of the page, without its definitions; None for a picture
        with more in it than `compact` leaves, which could act on the page."""
        root = _checked(text)
        if root is None:
            return None
        names: dict[str, str] = {}
        for parent in list(root.iter()):
            for child in [child for child in parent if "id" in child.attrib]:
                own = child.attrib["id"]
                names[own] = self._shared(child)
                parent.remove(child)
        for element in root.iter():
            for key, value in element.attrib.items():
                element.attrib[key] = _with_names(value, names)
        _remove_empty(root)
        root.attrib |= {"role": "img", "aria-label": says}
        return _of_page(root)

    def _shared(self, definition: Element) -> str:
        """The name of a definition on the page: its own unless a different one has it."""
        own = definition.attrib["id"]
        for name in itertools.chain([own], (f"{own}-{number}" for number in itertools.count(2))):
            definition.attrib["id"] = name
            text = _of_page(definition)
            if self._found.setdefault(name, text) == text:
                return name
        raise AssertionError

    @property
    def definitions(self) -> str:
        """An element of the page with all definitions, which takes no place."""
        return (
            f'<svg width="0" height="0" aria-hidden="true"><defs>{"".join(self._found.values())}</defs></svg>'
        )


def _of_page(element: Element) -> str:
    """The text of an element in HTML, which knows the namespace."""
    return _written(element).replace(f' xmlns="{SVG[1:-1]}"', "", 1)


def _with_names(value: str, names: dict[str, str]) -> str:
    if value.startswith("#"):
        return f"#{names.get(value[1:], value[1:])}"
    return re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{names.get(found[1], found[1])})", value)


def _remove_empty(root: Element) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag == f"{SVG}defs" and not len(child)]:
            parent.remove(child)


def _checked(text: str) -> Element | None:
    """The picture without its rules of style, if it draws and does nothing else."""
    if not text.startswith("<svg") or "<!" in text or "<?" in text:
        return None
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
    _remove(root, f"{SVG}style")
    for element in root.iter():
        if element.tag not in _TAGS or (element.text or "").strip() or (element.tail or "").strip():
            return None
        for key, value in element.attrib.items():
            linked = key.rpartition("}")[2] == "href"
            if key.lower().startswith("on") or key == "style" or (linked and not _DRAWN.fullmatch(value)):
                return None
    return root
