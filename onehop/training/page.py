"""report.html: all about a run on one page that needs no network: numbers, curves, samples, recipe, machine."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onehop.base.files import atomic_write
from onehop.training.page_pictures import Picture

STYLE = """
:root{color-scheme:light dark;--back:#fdfdfc;--ink:#23272b;--soft:#6a7178;--line:#e0e2e3;--box:#f3f4f3}
@media(prefers-color-scheme:dark){:root{--back:#16191c;--ink:#dadde0;--soft:#949ca4;--line:#363c42;--box:#20252a}}
body{font:15px/1.55 system-ui,sans-serif;max-width:60rem;margin:2.5rem auto;padding:0 1.2rem;background:var(--back);
color:var(--ink)}
h1{font-size:1.6rem;font-weight:600;margin:0}h2{font-size:.95rem;font-weight:600;margin:2rem 0 .3rem}
.state{color:var(--soft);margin:.1rem 0 1.4rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.8rem;margin-bottom:1.4rem}
.tile{background:var(--box);border-radius:8px;padding:.7rem .9rem}
.tile b{display:block;font-size:1.25rem;font-weight:600}
.tile span,.tile small{display:block;color:var(--soft);font-size:.8rem}
svg{width:100%;height:auto;display:block}svg text{font-family:system-ui,sans-serif}
table{border-collapse:collapse}td{padding:.15rem 1.2rem .15rem 0;vertical-align:top}
td:first-child{color:var(--soft);white-space:nowrap}
details{border-top:1px solid var(--line);padding:.6rem 0}summary{cursor:pointer;font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--box);padding:.8rem;border-radius:8px;font-size:.82rem}
"""


class Tile(NamedTuple):
    """A number that one looks for first: what it is, itself, and what belongs to it."""

    name: str
    number: str
    about: str = ""


@dataclass(frozen=True)
class Page:
    """What a page says: numbers in words first, then pictures, then what is folded, a text or a table each."""

    title: str
    state: str
    tiles: Sequence[Tile]
    facts: Mapping[str, str]
    pictures: Sequence[Picture]
    folded: Mapping[str, str | Mapping[str, Any]]

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        title = html.escape(self.title)
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
        body = f"<body>{''.join(self._parts())}</body>"
        atomic_write(path, f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>{body}</html>\n')

    def _parts(self) -> Iterator[str]:
        yield f'<h1>{html.escape(self.title)}</h1><p class="state">{html.escape(self.state)}</p>'
        yield f'<div class="tiles">{"".join(map(_tile, self.tiles))}</div>'
        yield _table(self.facts)
        for title, svg in self.pictures:
            yield f"<h2>{html.escape(title)}</h2>{svg}\n"
        yield "<h2>More</h2>"
        for title, inside in self.folded.items():
            shown = f"<pre>{html.escape(inside)}</pre>" if isinstance(inside, str) else _table(inside)
            yield f"<details><summary>{html.escape(title)}</summary>{shown}</details>"


def _tile(tile: Tile) -> str:
    name, number, about = map(html.escape, tile)
    return f'<div class="tile"><span>{name}</span><b>{number}</b><small>{about}</small></div>'


def _table(values: Mapping[str, Any]) -> str:
    shown = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in values.items()}
    lines = (f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in shown.items())
    return f"<table>{''.join(lines)}</table>"
