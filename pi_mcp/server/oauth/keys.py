"""The keys that the embedded server signs with: made, replaced and forgotten, so that at no time a token lacks its key.

Comes in: the store's keys and the time. Goes out: the key to sign with, and those to verify with. Several processes on
one store agree: the store lets only one of them replace a key.

    new key signs for ROTATE ─► retired: verifies until the last token that it signed has ended ─► gone
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pi_mcp.access import SigningKey, Store

if TYPE_CHECKING:
    from joserfc.jwk import ECKey

ALGORITHM = "ES256"
ROTATE = 30 * 24 * 3600.0
"""Seconds that one key signs."""
AHEAD = 300.0
"""Seconds by which the clock of the process that made a key may have been ahead of this one's."""
LOOK_AGAIN = 30.0
"""Seconds after which the store is asked whether another process replaced the key."""
PUBLIC = ("kty", "crv", "x", "y", "kid", "alg", "use")


class Keys:
    """The signing keys of one gateway process."""

    def __init__(self, store: Store, *, overlap: float, clock: Callable[[], float] = time.time) -> None:
        """`overlap`: seconds that a retired key still verifies; at least the longest life of an access token."""
        self._store = store
        self._overlap = overlap
        self._clock = clock
        self._kept: tuple[SigningKey, ...] = ()
        self._looked = float("-inf")

    async def signing(self) -> SigningKey:
        """The key to sign with; makes one where there is none, or the present one is old."""
        now = self._clock()
        keys = await self._all(now)
        current = next((key for key in keys if key.retired is None), None)
        if current is None:
            return await self._made(None, keys)
        # Or was made while the clock was ahead: it would sign for so much longer.
        if not current.created - AHEAD <= now < current.created + ROTATE:
            return await self.rotate(current)
        return current

    async def rotate(self, current: SigningKey) -> SigningKey:
        """Replace the key that signs; what it signed stays valid."""
        return await self._made(current, await self._all(self._clock()))

    async def verifying(self, kid: str) -> SigningKey | None:
        """The key of that id, if tokens of it may still be valid."""
        now = self._clock()
        for again in (False, True):
            for key in await self._all(now, again=again):
                if key.id == kid:
                    return key
            # Another process may have made it within the last seconds.
            if now - self._looked < 1.0:
                return None
        return None

    async def published(self) -> dict[str, Any]:
        """The JWK set (RFC 7517) of all keys that verify, without their private halves."""
        keys = await self._all(self._clock())
        if not keys:
            keys = (await self.signing(),)
        return {"keys": [{name: key.jwk[name] for name in PUBLIC if name in key.jwk} for key in keys]}

    async def _all(self, now: float, *, again: bool = False) -> tuple[SigningKey, ...]:
        if again or not self._kept or now - self._looked > LOOK_AGAIN or now < self._looked:
            self._kept = tuple(await self._store.signing_keys())
            self._looked = now
        return tuple(key for key in self._kept if key.expires is None or now < key.expires)

    async def _made(self, current: SigningKey | None, keys: Sequence[SigningKey]) -> SigningKey:
        now = self._clock()
        new = _new_key(now)
        replaces = None if current is None else current.id
        await self._store.add_signing_key(new, replaces=replaces, until=now + self._overlap)
        # Whether it was ours or another process's that was kept: the store knows which one signs.
        found = next((key for key in await self._all(now, again=True) if key.retired is None), None)
        return found or current or (keys[0] if keys else new)


def _new_key(now: float) -> SigningKey:
    from joserfc.jwk import ECKey

    made: ECKey = ECKey.generate_key("P-256", {"alg": ALGORITHM, "use": "sig"}, private=True, auto_kid=True)
    jwk = {name: value for name, value in made.as_dict(private=True).items() if isinstance(value, str)}
    return SigningKey(jwk["kid"], ALGORITHM, jwk, now)
