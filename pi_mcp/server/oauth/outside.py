"""Access tokens of an issuer that is not ours: signed ones by its published keys, others by asking it.

Comes in: a token, and what the operator said of its issuer. Goes out: a `Grant`, `BadToken` or `CannotTell`. A token
never says itself how it is checked: algorithms are the asymmetric ones alone, keys come from the issuer's own
document, and addresses or keys in a token's header are not looked at. An issuer that is dead, slow or huge delays a
request by `TIME_LIMIT` once in `AGAIN` seconds, and lets nobody in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from pi_mcp.access import Grant
from pi_mcp.auth.fetch import Fetcher, Resolve
from pi_mcp.errors import PiMcpError
from pi_mcp.server.oauth.bearer import LONGEST, BadToken, CannotTell
from pi_mcp.server.oauth.registration import known_scopes
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from joserfc.jwk import Key

ALGORITHMS: Mapping[str, str] = {
    **{f"{family}{bits}": "RSA" for family in ("RS", "PS") for bits in (256, 384, 512)},
    **{f"ES{bits}": "EC" for bits in (256, 384, 512)},
    "EdDSA": "OKP",
    "Ed25519": "OKP",
}
"""Algorithm → key type. No `none`, and no HMAC: a public key is no secret that could be shared."""
TYPES = ("", "jwt", "at+jwt", "application/at+jwt")
"""`typ` of an access token. What says that it is something else (a logout token, a proof) is no access token."""
LEEWAY = 30
"""Seconds by which the issuer's clock may differ."""
FRESH = 600.0
"""Seconds that keys count without being asked for again."""
STALE = 4 * 3600.0
"""Seconds that they count while the issuer cannot be reached."""
AGAIN = 15.0
"""Seconds between two tries to fetch: tokens with made-up key ids cannot make us flood the issuer."""
TIME_LIMIT = 5.0
LARGEST = 256 * 1024
"""Bytes of a document."""
MOST_KEYS = 100
ASKED_FOR = 60.0
"""Seconds that an introspected token counts as active: so long a revoked one may still be used here."""
REFUSED_FOR = 10.0
_REMEMBERED = 2000

_LOG = logging.getLogger("pi_mcp.server.oauth")


@dataclass(frozen=True, slots=True)
class Issuer:
    """What the operator says of the outside issuer."""

    issuer: str
    audiences: tuple[str, ...]
    """Any of them makes a token one for this gateway: its canonical resource, or what `--oauth-audience` names."""
    introspection_client: str | None = None
    """With it and the secret, tokens are asked about (RFC 7662) instead of being read."""
    introspection_secret: str | None = field(default=None, repr=False)
    jwks_url: str | None = None
    """In place of the one that the issuer's metadata names."""
    introspection_url: str | None = None


class Metadata:
    """The issuer's own documents, fetched when first needed and kept."""

    def __init__(self, issuer: Issuer, fetcher: Fetcher) -> None:
        self._issuer = issuer
        self._fetcher = fetcher
        self._found: dict[str, Any] | None = None

    async def address(self, name: str) -> str:
        """The endpoint that the issuer's metadata name so. Raises PiMcpError or CannotTell."""
        if self._found is None:
            for url in _locations(self._issuer.issuer):
                reply = await self._fetcher.request("GET", url, headers={"Accept": "application/json"}, limit=LARGEST)
                said = reply.json() if reply.ok else None
                # Another issuer's metadata at this one's address: nothing of it is believed (RFC 8414 §3.3).
                if isinstance(said, dict) and said.get("issuer") == self._issuer.issuer:
                    self._found = said
                    break
            else:
                raise CannotTell("the issuer has no metadata of its own")
        value = self._found.get(name)
        if not isinstance(value, str):
            raise CannotTell(f"the issuer's metadata has no {name}")
        return value

    def forget(self) -> None:
        """What they named did not do: the issuer may have moved it."""
        self._found = None


def _locations(issuer: str) -> tuple[str, ...]:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return tuple(
        dict.fromkeys(
            (
                f"{origin}/.well-known/oauth-authorization-server{path}",
                f"{origin}/.well-known/openid-configuration{path}",
                f"{origin}{path}/.well-known/openid-configuration",
            )
        )
    )


class _Checker(Protocol):
    async def claims(self, token: str, *, ask: bool) -> tuple[Mapping[str, Any], float | None]:
        """What a token says, once it is good and for us, and until when that counts at most."""


class OutsideIssuer:
    """Verifies the tokens of one outside issuer (`bearer.Verifier`)."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        resolve: Resolve | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        """`clock` is what tokens are held to; `steady` tells how old an answer is, and is never set back."""
        self.issuer = issuer
        # Judged by the address that the operator wrote: an issuer in the own network may name its neighbours.
        fetcher = Fetcher("", issuer.issuer, resolve=resolve, environ=environ, time_limit=time_limit)
        metadata = Metadata(issuer, fetcher)
        kind = PublishedKeys if issuer.introspection_client is None else Introspection
        self._checker: _Checker = kind(issuer, fetcher, metadata, clock, steady)

    async def verify(self, token: str, *, ask: bool = True) -> Grant:
        """The caller whose token this is. Raises BadToken or CannotTell."""
        if not token or len(token) > LONGEST or not token.isascii() or not token.isprintable() or " " in token:
            raise BadToken("no token")
        try:
            claims, until = await self._checker.claims(token, ask=ask)
        except PiMcpError as error:
            raise CannotTell(f"the issuer cannot be asked ({error.diagnostic.code})") from None
        return self._grant(claims, until)

    def _grant(self, claims: Mapping[str, Any], until: float | None) -> Grant:
        # A token that is bound to a key is worth nothing without a proof of it, which nobody checks here.
        if claims.get("cnf"):
            raise BadToken("bound to a key")
        client = claims.get("client_id", claims.get("azp"))
        client = clean_line(client, 200) if isinstance(client, str) else None
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject or clean_line(subject, 200) != subject:
            raise BadToken("no subject")
        ends = [float(at) for at in (claims.get("exp"), until) if at is not None]
        return Grant(
            subject,
            _credential(self.issuer.issuer, subject, client),
            "oauth",
            known_scopes(_scope(claims)).of_programs(),
            client=client,
            expires=min(ends, default=None),
        )


def _credential(issuer: str, subject: str, client: str | None) -> str:
    """A name for who calls by which client: tokens that are renewed keep it, and it tells nothing of them."""
    return "o" + hashlib.sha256(f"{issuer}\0{subject}\0{client or ''}".encode()).hexdigest()[:16]


def _scope(claims: Mapping[str, Any]) -> str:
    """`scope` (RFC 9068), or `scp` as some issuers have it; a text or a list."""
    said = claims.get("scope", claims.get("scp", ""))
    if isinstance(said, list):
        said = " ".join(one for one in said if isinstance(one, str))
    return said if isinstance(said, str) else ""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def check_claims(claims: Mapping[str, Any], issuer: Issuer, now: float, *, signed: bool) -> None:
    """Whose token it is, for whom, and when (RFC 9068 §4). Raises BadToken.

    `signed`: nothing but the token itself says so; an issuer that was asked has said "active" besides.
    """
    from joserfc.errors import JoseError
    from joserfc.jwt import JWTClaimsRegistry

    for name in ("exp", "nbf", "iat"):
        if name in claims and not _number(claims[name]):
            raise BadToken("a time that is no number")
    registry = JWTClaimsRegistry(
        now=int(now),
        leeway=LEEWAY,
        iss={"essential": signed, "value": issuer.issuer},
        aud={"essential": True, "values": list(issuer.audiences)},
        exp={"essential": signed},
    )
    try:
        registry.validate(dict(claims))
    except (JoseError, ValueError, TypeError, RecursionError):
        raise BadToken("issuer, audience or time") from None


class PublishedKeys:
    """Signed tokens, checked by the issuer's JWK set (RFC 7517)."""

    def __init__(
        self,
        issuer: Issuer,
        fetcher: Fetcher,
        metadata: Metadata,
        clock: Callable[[], float],
        steady: Callable[[], float],
    ) -> None:
        self._issuer = issuer
        self._fetcher = fetcher
        self._metadata = metadata
        self._clock = clock
        self._steady = steady
        self._keys: tuple[Key, ...] = ()
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._turn = asyncio.Lock()

    async def claims(self, token: str, *, ask: bool) -> tuple[Mapping[str, Any], float | None]:
        """What a token says, once signature, issuer, audience and times are right. Raises BadToken or CannotTell."""
        del ask  # no token makes us ask more often than once in `AGAIN` seconds
        from joserfc import jws
        from joserfc.errors import JoseError

        if token.count(".") != 2:
            raise BadToken("no signed token")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, TypeError, RecursionError):
            raise BadToken("unreadable") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise BadToken("algorithm")
        if str(header.get("typ", "")).lower() not in TYPES or not isinstance(kid, str | None):
            raise BadToken("kind of token")
        for key in await self._candidates(algorithm, kid):
            try:
                claims = _decoded(token, key, algorithm)
            except (JoseError, ValueError, TypeError, RecursionError):
                continue
            check_claims(claims, self._issuer, self._clock(), signed=True)
            return claims, None
        raise BadToken("signature")

    async def _candidates(self, algorithm: str, kid: str | None) -> list[Key]:
        if self._steady() - self._fetched >= FRESH:
            await self._fetch()
        found = self._fitting(algorithm, kid)
        if not found and kid is not None:
            # A key that was made since: look once more, but not for each token that claims one.
            await self._fetch()
            found = self._fitting(algorithm, kid)
        if not self._keys or self._steady() - self._fetched >= STALE:
            raise CannotTell("the issuer's keys cannot be had")
        return found

    def _fitting(self, algorithm: str, kid: str | None) -> list[Key]:
        return [
            key
            for key in self._keys
            if key.key_type == ALGORITHMS[algorithm]
            and (kid is None or key.kid == kid)
            and key.get("alg") in (None, algorithm)
        ]

    async def _fetch(self) -> None:
        """Fetch the keys, one at a time for all who wait, and not again within `AGAIN`; what fails leaves the old."""
        asked = self._steady()
        async with self._turn:
            if self._tried >= asked or self._steady() - self._tried < AGAIN:
                return
            self._tried = self._steady()
            try:
                url = self._issuer.jwks_url or await self._metadata.address("jwks_uri")
                reply = await self._fetcher.request("GET", url, headers={"Accept": "application/json"}, limit=LARGEST)
                keys = _public_keys(reply.json() if reply.ok else None)
            except (PiMcpError, CannotTell) as error:
                self._metadata.forget()
                _LOG.warning("the issuer's keys cannot be fetched: %s", type(error).__name__)
                return
            if not keys:
                self._metadata.forget()
                _LOG.warning("the issuer's key set holds no key that can be used")
                return
            self._keys, self._fetched = keys, self._steady()


def _decoded(token: str, key: Key, algorithm: str) -> dict[str, Any]:
    """What a token says, if this key signed it. Raises JoseError, ValueError or TypeError."""
    import warnings

    from joserfc import jwt
    from joserfc.errors import SecurityWarning
    from joserfc.jws import JWSRegistry

    # What an issuer writes into the header for itself is passed over, unless it says that it is critical (RFC 7515 §4).
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    with warnings.catch_warnings():
        # RFC 9864 has another name for EdDSA; issuers go on using the one that they have.
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.decode(token, key, registry=registry).claims


def _public_keys(said: object) -> tuple[Key, ...]:
    """The keys of a JWK set that can verify; what cannot be read is passed over (RFC 7517 §5)."""
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    listed = said.get("keys") if isinstance(said, dict) else None
    found: list[Key] = []
    for one in listed[:MOST_KEYS] if isinstance(listed, list) else ():
        if not isinstance(one, dict) or one.get("kty") not in ALGORITHMS.values():
            continue
        if one.get("use") not in (None, "sig") or not isinstance(one.get("kid"), str | None):
            continue
        try:
            key = JWKRegistry.import_key({name: value for name, value in one.items() if name != "key_ops"})
        except (JoseError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
        # An RSA key short enough to be broken is no key.
        if key.key_type == "RSA" and getattr(key.public_key, "key_size", 0) < 2048:
            continue
        found.append(key)
    return tuple(found)


class Introspection:
    """Tokens that only their issuer can read: it is asked about each of them (RFC 7662)."""

    def __init__(
        self,
        issuer: Issuer,
        fetcher: Fetcher,
        metadata: Metadata,
        clock: Callable[[], float],
        steady: Callable[[], float],
    ) -> None:
        self._issuer = issuer
        self._fetcher = fetcher
        self._metadata = metadata
        self._clock = clock
        self._steady = steady
        # By digest: what is remembered is worth nothing to whoever reads it.
        self._seen: OrderedDict[bytes, tuple[float, Mapping[str, Any] | None]] = OrderedDict()
        self._turns = asyncio.Semaphore(8)
        self._silent_until = float("-inf")

    async def claims(self, token: str, *, ask: bool) -> tuple[Mapping[str, Any], float | None]:
        """What the issuer says of a token that is active and for us. Raises BadToken or CannotTell."""
        digest, now = hashlib.sha256(token.encode()).digest(), self._steady()
        kept = self._seen.get(digest)
        if kept is None or now >= kept[0]:
            if not ask:
                raise BadToken("its issuer is not asked now")
            kept = await self._ask(token, now)
            self._seen[digest] = kept
            self._seen.move_to_end(digest)
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        if kept[1] is None:
            raise BadToken("not active")
        wall = self._clock()
        check_claims(kept[1], self._issuer, wall, signed=False)
        return kept[1], wall + kept[0] - now

    async def _ask(self, token: str, now: float) -> tuple[float, Mapping[str, Any] | None]:
        import base64

        if now < self._silent_until:
            raise CannotTell("the issuer did not answer a moment ago")
        pair = f"{quote(self._issuer.introspection_client or '', safe='')}:"
        pair += quote(self._issuer.introspection_secret or "", safe="")
        proof = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        try:
            async with self._turns:
                url = self._issuer.introspection_url or await self._metadata.address("introspection_endpoint")
                reply = await self._fetcher.post_form(url, {"token": token, "token_type_hint": "access_token"}, proof)
        except (PiMcpError, CannotTell):
            self._metadata.forget()
            self._silent_until = self._steady() + AGAIN
            raise
        said = reply.json() if reply.status == 200 else None
        if not isinstance(said, dict) or not isinstance(said.get("active"), bool):
            _LOG.warning("the issuer's introspection answers with status %d or no verdict", reply.status)
            raise CannotTell("the issuer gave no verdict")
        if not said["active"]:
            return now + REFUSED_FOR, None
        said.setdefault("sub", said.get("username", said.get("client_id")))
        return now + ASKED_FOR, said
