"""Render Jinja templates: the HTML reports and the model card.

An HTML page is one file that loads nothing: its style and its plots are inside.
"""

from __future__ import annotations

import base64
from functools import cache

import jinja2


def render_page(template: str, **values: object) -> str:
    """The page as text. In HTML every value is escaped, since titles, paths and names come from outside."""
    return _environment(escaped=not template.endswith(".md.jinja")).get_template(template).render(values)


@cache
def _environment(escaped: bool) -> jinja2.Environment:
    """Compiles each template once in a process."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedtaste.report"),
        autoescape=escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["data_uri"] = _data_uri
    return environment


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
