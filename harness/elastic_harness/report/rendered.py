"""Pages from the templates beside this file."""

from __future__ import annotations

import os

__all__ = ["render"]


def render(template: str, **values: object) -> str:
    """Return a page; every value is escaped as text."""
    # Imported here: pages are made once, at the end, and Jinja2 takes 30 ms to import.
    import jinja2

    folder = os.path.dirname(os.path.abspath(__file__))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(**values)
