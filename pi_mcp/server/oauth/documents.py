"""Clients that are known by a metadata document of theirs (draft-ietf-oauth-client-id-metadata-document).

Comes in: a `client_id` that is an https address. Goes out: the client's record, or None. Anybody can make us fetch an
address by this, so it is fetched as one that means harm: public addresses alone, also behind the DNS, no redirect, a
bounded body, few at a time, and what failed is not fetched again at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pi_mcp.access import Client, Store
from pi_mcp.auth.addresses import Reach, loopback_host
from pi_mcp.auth.fetch import Fetcher, Resolve
from pi_mcp.errors import PiMcpError
from pi_mcp.server.oauth.limits import Throttle
from pi_mcp.server.oauth.registration import BadMetadata, accepted

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Reply

LONGEST_ADDRESS = 500
LARGEST = 10 * 1024
"""Bytes of a document."""
TIME_LIMIT = 5.0
AT_ONCE = 4
"""Documents that are fetched at the same time; further requests wait, for `TIME_LIMIT` at most."""
PER_MINUTE = 60
"""Fetches that all clients together may cause."""
KEPT, LEAST, MOST = 3600.0, 60.0, 24 * 3600.0
"""Seconds that a document is believed: without a word of its server, and the bounds of what that may say."""
FAILED = 60.0
"""Seconds that an address which gave no usable document is left alone."""
_REMEMBERED = 1000

_LOG = logging.getLogger("pi_mcp.server.oauth")
_MAX_AGE = re.compile(r"(?:^|[,\s])max-age=\"?(\d{1,9})")


class Documents:
    """The metadata documents of one gateway."""

    def __init__(
        self,
        store: Store,
        *,
        reach: Reach = "public",
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reach`: which addresses may be fetched; other than `public` for tests alone."""
        self._steady = steady
        self._store = store
        self._clock = clock
        self._reach = reach
        self._fetcher = Fetcher("", "", reach=reach, resolve=resolve, time_limit=TIME_LIMIT)
        self._failed: dict[str, float] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._throttle = Throttle(PER_MINUTE, 60.0)

    def is_address(self, client_id: str) -> bool:
        """May this `client_id` stand for a metadata document? By its text alone."""
        if len(client_id) > LONGEST_ADDRESS or not client_id.isascii() or not client_id.isprintable():
            return False
        if any(char in client_id for char in ' #\\"<>'):
            return False
        try:
            parts = urlsplit(client_id)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            return False
        secure = parts.scheme == "https" or (
            parts.scheme == "http" and self._reach == "loopback" and loopback_host(host)
        )
        segments = parts.path.lower().replace("%2e", ".").split("/")
        return (
            secure
            and bool(host)
            and "@" not in parts.netloc
            and parts.path not in ("", "/")
            and not any(segment in (".", "..") for segment in segments)
        )

    async def client(self, client_id: str) -> Client | None:
        """The client of a document, from the store while that is fresh; None where there is none that can be used."""
        now = self._clock()
        kept = await self._store.client(client_id)
        # Not one that was read in what is the future now: the clock was set back.
        if kept is not None and kept.kind == "document" and kept.created <= now < (kept.expires or 0.0):
            return kept
        if self._steady() < self._failed.get(client_id, float("-inf")):
            return None
        try:
            async with asyncio.timeout(2 * TIME_LIMIT), self._turns:
                if self._throttle.wait("") > 0:
                    _LOG.warning("more client metadata documents are asked for than are fetched in a minute")
                    return None
                self._throttle.count("")
                # The description's own caches have no say: a client's change of address is to be seen.
                reply = await self._fetcher.request(
                    "GET", client_id, headers={"Accept": "application/json"}, follow=False, limit=LARGEST
                )
            client = self._read(client_id, reply, now)
        except (PiMcpError, TimeoutError, BadMetadata) as error:
            _LOG.info("a client metadata document cannot be used: %s", type(error).__name__)
            self._failed = dict(list(self._failed.items())[-_REMEMBERED:])
            self._failed[client_id] = self._steady() + FAILED
            return None
        await self._store.put_client(client)
        return client

    def _read(self, client_id: str, reply: Reply, now: float) -> Client:
        if reply.status != 200 or not re.fullmatch(r"application/(?:[a-z0-9.-]+\+)?json", reply.media_type):
            raise BadMetadata("invalid_client", "The address gave no JSON document.")
        said = reply.json()
        # The document has to name its own address, letter by letter: else one site could speak for another.
        if not isinstance(said, dict) or said.get("client_id") != client_id or "client_secret" in said:
            raise BadMetadata("invalid_client", "The document is not that client's.")
        found = _MAX_AGE.search((reply.header("cache-control") or "").lower())
        life = min(max(float(found[1]), LEAST), MOST) if found else KEPT
        return Client(client_id, "document", accepted(said, document=True), now, expires=now + life, last_used=now)
