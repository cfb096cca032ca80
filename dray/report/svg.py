"""Small pieces of SVG, escaped, that stretch with the page.

Places along x are per cent of the width, so a chart fits any screen while its text keeps its size;
places along y are pixels. Colours are classes, which the page's style sheet maps for light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

LABELS = 22
"""Pixels below a plot for the labels of its x axis."""


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """An element. ``class_`` and ``text_anchor`` become ``class`` and ``text-anchor``."""
    head = "".join(f' {_attribute(key)}="{_value(value)}"' for key, value in attributes.items())
    body = Markup("").join(children)
    return Markup(f"<{name}{head}>{body}</{name}>" if body else f"<{name}{head}/>")  # noqa: S704  escaped above


def percent(place: float) -> str:
    """A place along x, from 0 to 100."""
    return f"{_trim(place, 2)}%"


def drawing(title: str, description: str, *marks: str, height: float) -> Markup:
    """A whole picture, named and described for those who do not see it."""
    label = tag("title", escape(title))
    spoken = tag("desc", escape(description))
    return tag("svg", label, spoken, *marks, height=height, role="img", aria_label=f"{title}. {description}")


def text(
    content: str, x: str | float, y: float, class_: str = "", anchor: str = "start", dx: float = 0
) -> Markup:
    """A line of text with its baseline at ``y``."""
    extra: dict[str, str | float] = {"text_anchor": anchor} if anchor != "start" else {}
    if class_:
        extra["class_"] = class_
    if dx:
        extra["dx"] = dx
    return tag("text", escape(content), x=x, y=y, **extra)


def bar(
    left: float, right: float, y: float, height: float, class_: str, hint: str = "", thin: float = 0.1
) -> Markup:
    """A rectangle between two places along x, at least ``thin`` per cent wide; ``hint`` is its tooltip."""
    inner = [tag("title", escape(hint))] if hint else []
    width = percent(max(right - left, thin))
    return tag("rect", *inner, class_=class_, x=percent(left), y=y, width=width, height=height)


def dot(place: float, y: float, radius: float, class_: str, hint: str) -> Markup:
    """A circle at ``place`` per cent; ``hint`` is its tooltip."""
    return tag("circle", tag("title", escape(hint)), class_=class_, cx=percent(place), cy=y, r=radius)


def upright(place: float, top: float, bottom: float, class_: str) -> Markup:
    """A vertical line at ``place`` per cent."""
    return tag("line", class_=class_, x1=percent(place), x2=percent(place), y1=top, y2=bottom)


def y_axis(labels: Iterable[tuple[float, str]]) -> Markup:
    """Grid lines at the given heights in pixels, labelled in the margin."""
    parts: list[Markup] = []
    for y, label in labels:
        parts.append(tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        parts.append(text(label, -8, y + 4, anchor="end"))
    return Markup("").join(parts)


def x_axis(labels: Iterable[tuple[float, str]], bottom: float) -> Markup:
    """The base line with tick labels; every second label gives way on a narrow screen."""
    parts = [tag("line", class_="base", x1=0, x2="100%", y1=bottom, y2=bottom)]
    for number, (place, label) in enumerate(labels):
        parts.append(upright(place, bottom, bottom + 4, "base"))
        anchor = "start" if place < 1 else "end" if place > 97 else "middle"
        parts.append(text(label, percent(place), bottom + 17, "spare" if number % 2 else "", anchor))
    return Markup("").join(parts)


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return str(escape(value)) if isinstance(value, str) else _trim(value, 1)


def _trim(number: float, places: int) -> str:
    fixed = f"{number:.{places}f}"
    return fixed.rstrip("0").rstrip(".") if "." in fixed else fixed
