"""SVG as trees of xml.etree, which escapes whatever is written into them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from xml.etree import ElementTree

Element = ElementTree.Element
_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what no XML document may hold


def element(tag: str, attributes: Mapping[str, object], *children: Element) -> Element:
    """`<tag key="value">children</tag>`; numbers are rounded to a hundredth of a pixel."""
    made = ElementTree.Element(tag, {key: _value(value) for key, value in attributes.items()})
    made.extend(children)
    return made


def words(tag: str, content: str, attributes: Mapping[str, object] | None = None) -> Element:
    """An element that holds text."""
    made = element(tag, attributes or {})
    made.text = _FORBIDDEN.sub("\ufffd", content)
    return made


def label(x: float, y: float, content: str, kind: str = "label", anchor: str = "start") -> Element:
    """A line of text whose baseline is at y."""
    return words("text", content, {"x": x, "y": y, "class": kind, "text-anchor": anchor})


def rectangle(x: float, y: float, width: float, height: float, kind: str, **more: str) -> Element:
    return element("rect", {"x": x, "y": y, "width": width, "height": height, "class": kind, **more})


def moved(x: float, y: float, children: Iterable[Element]) -> Element:
    return element("g", {"transform": f"translate({_value(x)} {_value(y)})"}, *children)


def picture(width: float, height: float, title: str, text: str, children: Iterable[Element]) -> Element:
    """A whole `<svg>`.  title, text: what it shows, for those who cannot see it."""
    about = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {_value(width)} {_value(height)}",
        "width": width,
        "height": height,
        "role": "img",
        "class": "sp-picture",
    }
    return element("svg", about, words("title", title), words("desc", text), *children)


def alone(svg: Element) -> str:
    """An SVG file: with its style sheet, and a ground of its own to stand on."""
    ground = rectangle(0, 0, float(svg.attrib["width"]), float(svg.attrib["height"]), "ground")
    head = [svg[0], svg[1], words("style", style()), ground]
    whole = element("svg", svg.attrib, *head, *svg[2:])
    ElementTree.indent(whole, " ")
    return written(whole) + "\n"


def written(svg: Element) -> str:
    return ElementTree.tostring(svg, encoding="unicode")


def style() -> str:
    """The style sheet of pictures, for light and dark pages."""
    return files("sp.show.pictures").joinpath("page", "pictures.css").read_text("utf-8")


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _FORBIDDEN.sub("\ufffd", str(value))
