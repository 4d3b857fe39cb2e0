"""`pi-mcp engine`: a Plugin for a host agent in another process, JSON-RPC over its standard input and output.

Comes in: lines of a host's shim (docs/engine.md). Goes out: lines, an exit code. Nothing but protocol reaches standard
output; nothing that it started outlives it, nor it its host. Importing it loads nothing heavy.
"""

from __future__ import annotations

PROTOCOL = 1
"""The version of the protocol; a shim of another one is told to be installed again."""

__all__ = ["PROTOCOL"]
