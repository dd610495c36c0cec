"""What every page is made of: self-contained, no network, opens from disk, prints well."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure

from flexpredict.report.figures.style import to_png, to_svg
from flexpredict.version import VERSION

GENERATOR = '<meta name="generator" content="FlexPredict'
_PIXELS = 130  # of a page, for an inch of a figure
_BROAD = 5  # inches: broader ones scroll on a telephone, where their text could not be read
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff;
       max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin-top: 2.4rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1.05rem; margin-top: 1.8rem; }
p, figcaption, li { max-width: 48rem; overflow-wrap: anywhere; }
nav a { margin-right: 1rem; } a { color: #0060a0; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums;
        font-size: .9rem; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right;
         vertical-align: top; }
th { min-width: 4.5rem; max-width: 18rem; overflow-wrap: break-word; }
tbody th { font-weight: normal; }
th:first-child, td:first-child { text-align: left; min-width: 8rem; }
th:first-child { position: sticky; left: 0; background: #fff; }
tr.differs > *, tr.differs > th:first-child { background: #fff3d6; }
data, small { white-space: nowrap; } small { color: #555; }
figure { margin: 1rem 0; }
figure img, figure svg { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: .9rem; }
.scroll, .wide { overflow-x: auto; } img.broad { min-width: 34rem; }
.panels { display: grid; gap: .5rem 1.5rem;
          grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.panels figure { margin: 0; } .panels img { width: 100%; }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; }
ul.legend svg { width: 2.4rem; height: .8rem; margin-right: .4rem; vertical-align: middle; }
details { margin: 1rem 0; } summary { cursor: pointer; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: .85rem; }
@media (max-width: 36rem) {
  th, td { padding: .25rem .35rem; font-size: .85rem; }
  th:first-child, td:first-child { min-width: 5.5rem; }
}
@media print {
  body { margin: 0; max-width: none; font-size: 10pt; } nav { display: none; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  * { print-color-adjust: exact; } .scroll, .wide { overflow: visible; }
  table { font-size: 8pt; } th, td { padding: .1rem .3rem; overflow-wrap: anywhere; }
  th { min-width: 0; } th:first-child { min-width: 5rem; }
  .panels { grid-template-columns: repeat(2, 1fr); } img.broad { min-width: 0; }
  details:not([open])::details-content { content-visibility: visible; block-size: auto; }
}
"""


def page(title: str, sections: Sequence[str]) -> str:
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{GENERATOR} {escape(VERSION)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def table(
    head: Sequence[str], rows: Mapping[str, Sequence[str]], *, name: str, marked: Sequence[str] = ()
) -> str:
    """Cells are HTML, titles of rows and columns are text; runs differ in the marked rows.

    name: the element's id
    """
    titles = "".join(f'<th scope="col">{_breaking(title)}</th>' for title in head)
    body = []
    for title, cells in rows.items():
        kind = " class=differs" if title in marked else ""
        title = f"≠ {title}" if kind else title  # not by colour alone
        shown = "".join(f"<td>{cell}</td>" for cell in cells)
        body.append(f'<tr{kind}><th scope="row">{_breaking(title)}</th>{shown}</tr>')
    return (
        f'<div class=wide><table id="{escape(name)}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _breaking(text: str) -> str:
    """Text that may go on in a new line between its words, and between theirs in names."""
    return re.sub(r"([_/=-])", r"\1<wbr>", escape(text))


def number(value: float | None, digits: str = ".4g") -> str:
    """Rounded for the eye, exact in the page's source. Nearly 1 is not 1, of an EMA above all."""
    if value is None:
        return "–"
    text = f"{value:{digits}}"
    if text == "1" and value != 1:
        text = f"{value:.7g}"
    return f'<data value="{json.dumps(value)}">{text}</data>'


def vector(figure: Figure, caption: str, alt: str | None = None) -> str:
    """A figure of lines. As an image of its own, its names cannot meet those of others."""
    return _figure("image/svg+xml", to_svg(figure).encode(), figure, caption, alt)


def picture(figure: Figure, caption: str, alt: str | None = None) -> str:
    """A figure of pixels."""
    return _figure("image/png", to_png(figure), figure, caption, alt)


def _figure(kind: str, data: bytes, figure: Figure, caption: str, alt: str | None) -> str:
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    width, height = figure.get_size_inches()
    broad = " class=broad" if width > _BROAD else ""
    size = f'width="{width * _PIXELS:.0f}" height="{height * _PIXELS:.0f}"'
    image = f'<img{broad} {size} alt="{escape(alt or caption)}" src="{source}">'
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><div class=scroll>{image}</div>{below}</figure>"


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def swatch(style: Mapping[str, Any]) -> str:
    """A piece of line as it is drawn in figures."""
    dash = style["linestyle"]
    pattern = "" if dash == "-" else " ".join(str(3 * part) for part in dash[1])
    return (
        f'<svg viewBox="0 0 36 8" aria-hidden="true"><line x1="0" y1="4" x2="36" y2="4" '
        f'stroke="{style["color"]}" stroke-width="3" stroke-dasharray="{pattern}"/></svg>'
    )
