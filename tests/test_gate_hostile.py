"""A shared gateway among servers and callers that mean harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pi_mcp.access import AuditFilter
from tests.access_support import shared_gateway
from tests.gateway_support import Client, Failed, ModernClient
from tests.hostile.script import entry, tool
from tests.plugin_support import spoken
from tests.support import run


@pytest.mark.parametrize(
    "error",
    [
        [-32003, "no", {"scope": "admin tools:write"}],
        [-32003, "no", {"scope": 'tools:read"\r\nset-cookie: a=b'}],
        [-32029, "no", {"retryAfter": "1\r\nset-cookie: a=b"}],
        [-32029, "no", {"other": 1}],
        [-32029, "no", None],
    ],
)
def test_a_servers_error_that_looks_like_ours_is_an_answer_like_any_other(tmp_path: Path, error: list[Any]) -> None:
    """It asks no client for more rights, slows nobody down, and writes no header."""

    async def work() -> None:
        says = entry(tmp_path, spoken([tool("turn")], **{"tools/call": [[{"error": error}]]}))
        async with shared_gateway({"s": says}, tmp_path, expose="all") as shared:
            for kind in ("oauth", "bearer"):
                for made in (Client, ModernClient):
                    async with made(shared.url, **await shared.headers(kind, "tools:write")) as client:
                        with pytest.raises(Failed) as failed:
                            await client.call("s__turn", {})
                        assert (failed.value.status, failed.value.code, failed.value.data) == (200, error[0], error[2])
            assert {row.outcome for row in await shared.store.audit(AuditFilter(limit=None))} == {"error"}

    run(work())
