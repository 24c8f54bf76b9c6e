"""Tables for the report: small self-contained HTML pages."""

from collections.abc import Iterable
from html import escape

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; margin: 2rem auto; max-width: 62rem; padding: 0 1.5rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0 1rem; color: #52606d; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #52606d; border-bottom: 2px solid #cbd2d9; }
th, td { padding: .38rem .9rem .38rem 0; vertical-align: top; }
td { border-bottom: 1px solid #e4e7eb; } td.number, th.number { text-align: right; }
tr:hover td { background: #f5f7fa; }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
      background: #f5f7fa; padding: .6rem .8rem; border-radius: 6px; }
mark { background: #d9f0e3; border-radius: 3px; padding: 0 .2em; }
"""


class Raw(str):
    """Text that is HTML already."""


def code(text: str) -> Raw:
    """Return `text` as a preformatted block."""
    return Raw(f"<pre>{escape(text)}</pre>")


def numeric(value: object) -> bool:
    """Return whether a value is shown as a number: a number, or a percentage."""
    return (isinstance(value, int | float) and not isinstance(value, bool)) or str(value).endswith("%")


def cell(value: object, decimals: int = 4) -> str:
    """Return a table cell: numbers to the right and with separators, None as a dash.

    Floats have so many decimals, one from a hundred on, and small ones as many as it takes to show three digits that
    count.
    """
    if isinstance(value, Raw):
        return f"<td>{value}</td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    if isinstance(value, float):
        small = 0 < abs(value) < 10 ** (2 - decimals)
        text = f"{value:.3g}" if small else f"{value:,.{1 if abs(value) >= 100 else decimals}f}"
        return f'<td class="number">{text}</td>'
    kind = ' class="number"' if numeric(value) else ""
    return f"<td{kind}>{'–' if value is None else escape(str(value))}</td>"


def table(head: list[str], rows: Iterable[list], decimals: int = 4) -> str:
    """Return a table as HTML; a column whose first value is a number is aligned to the right.

    decimals  of floats, see `cell`
    """
    rows = list(rows)
    right = [numeric(value) for value in rows[0]] if rows else [False] * len(head)
    heads = "".join(
        f'<th class="number">{escape(name)}</th>' if number else f"<th>{escape(name)}</th>"
        for name, number in zip(head, right, strict=True)
    )
    body = "".join(f"<tr>{''.join(cell(value, decimals) for value in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table>\n"


def section(title: str, text: str, content: str) -> str:
    """Return a heading, a paragraph (may be empty) and content that is HTML already."""
    return f"<h2>{escape(title)}</h2>\n" + (f"<p>{escape(text)}</p>\n" if text else "") + content


def page(title: str, text: str, content: str) -> str:
    """Return a whole page; `content` is HTML already."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n<p>{escape(text)}</p>\n{content}</body></html>\n"
    )
