"""Live session → catalog of tools: what each server offers, kept for a day, asked again when it is due.

Comes in: the configuration and its connections. Goes out: frozen catalogs. Nothing here ranks, loads or calls. Names
are found when they are first used: what only reads a kept catalog loads no event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pi_mcp.catalog.discovery import Catalogs, Discovery
    from pi_mcp.catalog.records import DAY, NO_CATALOGS, Catalog, Tool
    from pi_mcp.catalog.store import CatalogStore

_HOMES = {
    "Catalog": "records",
    "CatalogStore": "store",
    "Catalogs": "discovery",
    "DAY": "records",
    "Discovery": "discovery",
    "NO_CATALOGS": "records",
    "Tool": "records",
}

__all__ = ["DAY", "NO_CATALOGS", "Catalog", "CatalogStore", "Catalogs", "Discovery", "Tool"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
