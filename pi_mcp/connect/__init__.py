"""Definitions become live sessions: one owner task per server, transports, child processes, supervisor.

Comes in: server definitions. Goes out: listings and call results as the servers sent them. This room and the ones
under it know nothing of catalogs, ranking and native tools; the SDK is imported at the first connection.
"""

from __future__ import annotations

from pi_mcp.connect.connection import CallHandlers, Connection
from pi_mcp.connect.connections import Connections
from pi_mcp.connect.faults import Fault, Faults, diagnose
from pi_mcp.connect.listing import Listing
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.session import ServerInfo

__all__ = [
    "CallHandlers",
    "Connection",
    "Connections",
    "Fault",
    "Faults",
    "Listing",
    "LogRing",
    "ServerInfo",
    "diagnose",
]
