"""Live session → catalog of tools: what each server offers, kept for a day, asked again when it is due.

Comes in: the configuration and its connections. Goes out: frozen catalogs. Nothing here ranks, loads or calls.
"""

from __future__ import annotations

from pi_mcp.catalog.discovery import Catalogs, Discovery
from pi_mcp.catalog.records import DAY, NO_CATALOGS, Catalog, Tool
from pi_mcp.catalog.store import CatalogStore

__all__ = ["DAY", "NO_CATALOGS", "Catalog", "CatalogStore", "Catalogs", "Discovery", "Tool"]
