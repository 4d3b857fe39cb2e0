"""A page from a template: escaped, styled, and with the headers that keep it to itself.

Comes in: a template's name and values. Goes out: a response. Every value is escaped by Jinja2; a template that names a
value which is not there fails instead of showing nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from datetime import UTC, datetime
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Any

from pi_mcp._version import __version__
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.responses import HTMLResponse

STYLE = "style.css"


@functools.cache
def environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["time"] = shown_time
    made.filters["line"] = lambda text, limit=200: clean_line(str(text), limit)
    made.globals.update(version=__version__, style=_style())
    return made


@functools.cache
def _text(name: str) -> str:
    return package_files("pi_mcp.server.pages").joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def _style() -> Any:
    from markupsafe import Markup

    return Markup(_text(STYLE))  # noqa: S704 - our own file


@functools.cache
def _style_hash() -> str:
    return base64.b64encode(hashlib.sha256(_text(STYLE).encode()).digest()).decode()


def policy(form_sources: tuple[str, ...] = ()) -> str:
    """The Content-Security-Policy: nothing is loaded or run, one known style, forms to us alone, no frame.

    `form_sources`: where a form's answer redirects to; Chromium applies `form-action` to that, too.
    """
    forms = " ".join(("'self'", *form_sources))
    return (
        f"default-src 'none'; style-src 'sha256-{_style_hash()}'; form-action {forms}; "
        "frame-ancestors 'none'; base-uri 'none'"
    )


def headers(form_sources: tuple[str, ...] = ()) -> dict[str, str]:
    """What every answer for a browser carries.

    No Cross-Origin-Opener-Policy: it would cut a client's own window off that opened consent in a second one.
    """
    return {
        "Content-Security-Policy": policy(form_sources),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        # `no-referrer` would make browsers send `Origin: null` with our own forms.
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    }


def page(template: str, /, *, status: int = 200, form_sources: tuple[str, ...] = (), **values: Any) -> HTMLResponse:
    """Render `templates/TEMPLATE.html`."""
    from starlette.responses import HTMLResponse

    html = environment().get_template(f"{template}.html").render(**values)
    return HTMLResponse(html, status_code=status, headers=headers(form_sources))


def shown_time(at: float | None, absent: str = "never") -> str:
    """A time for people: UTC, to the minute."""
    if at is None:
        return absent
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "unknown"
