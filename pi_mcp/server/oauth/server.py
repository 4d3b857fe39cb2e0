"""The embedded authorization server: requests, its rules (`grants.py`), and the store, brought together.

Comes in: parsed requests. Goes out: `Answer`s, and `Grant`s for access tokens. It makes no page and asks nobody: a
person's yes comes in as a signed-in browser and the scopes that they left ticked.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from pi_mcp.access import Client, Consent, Grant, Limits, Scopes, SignIn, Store, Token
from pi_mcp.access import secrets as minted
from pi_mcp.server.oauth import grants
from pi_mcp.server.oauth.bearer import LONGEST, BadToken
from pi_mcp.server.oauth.documents import Documents
from pi_mcp.server.oauth.grants import ACCESS_LIFE, CONSENT_LIFE, Answer, Asked, Exchange, Pairs, Refused, error_answer
from pi_mcp.server.oauth.keys import Keys
from pi_mcp.server.oauth.limits import Throttle
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.registration import GRANTS, BadMetadata, accepted

UNUSED_LIFE = 24 * 3600.0
"""Seconds after which a registration that nobody agreed to is forgotten."""
USED_LIFE = 2 * CONSENT_LIFE
"""Seconds after the last yes to it that a registration is kept: else their number would only grow, to its limit."""
MOST_CLIENTS = 5000
REGISTRATIONS_PER_HOUR = 500
"""Of all together; one address may do `PER_ADDRESS` a minute."""
PER_ADDRESS = 20
PER_ADDRESS_HOUR = 100
"""Of one address within an hour: nobody alone takes the places of all others, nor fills `MOST_CLIENTS` with clients
that live for a day."""
LEEWAY = 5
"""Seconds by which clocks of several gateway processes may differ."""
_REMEMBERED = 2000

_LOG = logging.getLogger("pi_mcp.server.oauth")


class AuthorizationServer:
    """One gateway's own issuer. `verify` makes it a `bearer.Verifier`."""

    def __init__(
        self,
        places: Places,
        store: Store,
        *,
        documents: Documents | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.places = places
        self.store = store
        self.keys = Keys(store, overlap=ACCESS_LIFE + 60, clock=clock)
        self._clock = clock
        self._documents = documents or Documents(store, clock=clock)
        self._registrations = (Throttle(PER_ADDRESS, 60.0), Throttle(PER_ADDRESS_HOUR, 3600.0))
        self._verified: OrderedDict[bytes, tuple[int, Grant]] = OrderedDict()

    # Clients

    def is_document(self, client_id: str) -> bool:
        """Does asking for this client mean to fetch a document? Only people who are signed in may make us do that."""
        return self._documents.is_address(client_id)

    async def client(self, client_id: str | None) -> Client | None:
        """The client of that id, registered or by its metadata document; None where there is none."""
        if not client_id or len(client_id) > 1000 or not client_id.isprintable():
            return None
        if self.is_document(client_id):
            return await self._documents.client(client_id)
        found = await self.store.client(client_id)
        if found is None or found.kind != "registered":
            return None
        return None if found.expires is not None and self._clock() >= found.expires else found

    async def register(self, said: object, address: str) -> Answer:
        """Register a client (RFC 7591). `address` is the network address of whoever asks."""
        now = self._clock()
        if (wait := max(throttle.wait(address) for throttle in self._registrations)) > 0:
            return _too_many(wait)
        for throttle in self._registrations:
            throttle.count(address)
        try:
            metadata = accepted(said)
        except BadMetadata as error:
            return error_answer(error.error, error.description)
        if (
            await self.store.count_clients(since=now - 3600) >= REGISTRATIONS_PER_HOUR
            or await self.store.count_clients() >= MOST_CLIENTS
        ):
            _LOG.warning("more clients are registering than are taken; none is taken now")
            return _too_many(600)
        made = minted.mint("client")
        public = metadata["token_endpoint_auth_method"] == "none"  # noqa: S105 - no password
        await self.store.put_client(
            Client(made.id, "registered", metadata, now, None if public else made.digest, now + UNUSED_LIFE)
        )
        body = {"client_id": made.id, "client_id_issued_at": int(now), **metadata}
        if not public:
            body |= {"client_secret": made.text, "client_secret_expires_at": 0}
        return Answer(201, body, (("Cache-Control", "no-store"), ("Pragma", "no-cache")))

    # A person's yes

    async def asked(self, pairs: Pairs) -> Asked:
        """What an authorization request asks for. Raises `grants.Refused`."""
        client_id = next((value for name, value in pairs if name == "client_id"), None)
        return grants.read_authorization(pairs, await self.client(client_id), self.places)

    def grantable(self, asked: Asked, person: Scopes) -> Scopes:
        """Of what is asked for, what this person may give."""
        return asked.scopes.common(person).of_programs()

    async def agree(self, asked: Asked, person: SignIn, chosen: Iterable[str]) -> Answer:
        """The person agrees to the chosen ones of the scopes. Raises Refused where none of them is theirs to give."""
        now = self._clock()
        scopes = Scopes(self.grantable(asked, person.scopes).tokens & frozenset(chosen))
        if not scopes:
            raise Refused("access_denied", "No scope was granted.", asked.redirect_uri)
        consent = Consent(
            minted.new_id("g"),
            person.subject,
            asked.client.id,
            str(asked.client.metadata.get("client_name", "")),
            scopes,
            self.places.resource,
            now,
            now + CONSENT_LIFE,
            key=person.key,
        )
        if asked.client.kind == "registered":
            await self.store.put_client(replace(asked.client, expires=now + USED_LIFE, last_used=now))
        await self.store.add_consent(consent)
        text, code = grants.new_code(asked, consent, now)
        await self.store.add_code(code)
        return grants.code_answer(asked, text, self.places)

    def refuse(self, refused: Refused, state: str | None) -> Answer:
        return grants.refusal_answer(refused, state, self.places)

    # Tokens

    async def token(self, pairs: Pairs, authorization: str | None) -> Answer:
        """Exchange a code or a refresh token."""
        values = dict(pairs)
        exchange = await self._exchange(pairs, authorization)
        kind = values.get("grant_type")
        if kind == "authorization_code" and (found := minted.recognise(values.get("code", ""), "code")):
            code = await self.store.code(found[0])
            exchange.code = code if code is not None and minted.same(code.digest, found[1]) else None
            exchange.consent = await self._consent(exchange.code.consent if exchange.code else None)
        elif kind == "refresh_token" and (found := minted.recognise(values.get("refresh_token", ""), "refresh")):
            exchange.refresh = await self._kept(*found)
            exchange.consent = await self._consent(exchange.refresh.consent if exchange.refresh else None)
        answer = grants.token_answer(pairs, authorization, exchange)
        if exchange.replayed:
            await self._replayed(exchange)
        if answer.status != 200:
            return answer
        if exchange.code is not None:
            outcome = await self.store.redeem_code(exchange.code.id, exchange.now, exchange.made_tokens)
        elif exchange.refresh is not None:
            outcome = await self.store.rotate(exchange.refresh.id, exchange.now, exchange.made_tokens)
        else:
            outcome = "unknown"
        if outcome != "rotated":
            if outcome == "reused":  # somebody else was quicker with the same code or token
                await self._replayed(exchange)
            return error_answer("invalid_grant", "It was used already; sign in again.")
        return answer

    async def revoke(self, pairs: Pairs, authorization: str | None) -> Answer:
        """End a token (RFC 7009): a refresh token ends everything that its grant gave."""
        exchange = await self._exchange(pairs, authorization)
        text = dict(pairs).get("token", "")
        found = minted.recognise(text, "refresh")
        if found is not None:
            exchange.refresh = await self._kept(*found)
        else:
            try:
                exchange.refresh = await self._checked(text)
            except BadToken:
                exchange.refresh = None
        answer = grants.revocation_answer(pairs, authorization, exchange)
        if (ending := exchange.revoke) is not None:
            if ending.kind == "refresh":
                await self.store.revoke_consent(ending.consent, exchange.now)
            else:
                await self.store.revoke_token(ending.id, exchange.now)
        return answer

    async def verify(self, token: str, *, ask: bool = True) -> Grant:
        """The caller whose access token this is. Raises BadToken."""
        del ask
        now = self._clock()
        digest = minted.digest(token)
        revision = await self.store.revision()
        kept = self._verified.get(digest)
        if kept is not None and kept[0] == revision and kept[1].expires is not None and now < kept[1].expires:
            self.store.used("oauth", kept[1].credential_id, now)
            return kept[1]
        record = await self._checked(token)
        if not record.valid(now):
            raise BadToken("expired or revoked")
        consent = await self._consent(record.consent)
        if consent is None or not consent.valid(now):
            raise BadToken("the grant has ended")
        key = await self.store.key(consent.key) if consent.key is not None else None
        ends = [at for at in (record.expires, consent.expires, key.expires if key else None) if at is not None]
        grant = Grant(
            consent.subject,
            consent.id,
            "oauth",
            record.scopes,
            limits=Limits() if key is None else key.limits,
            key=consent.key,
            client=record.client,
            expires=min(ends),
        )
        self.store.used("oauth", consent.id, now)
        self._verified[digest] = (revision, grant)
        while len(self._verified) > _REMEMBERED:
            self._verified.popitem(last=False)
        return grant

    async def _checked(self, text: str) -> Token:
        """The record of an access token that we signed and that is for us, ended or not. Raises BadToken."""
        from joserfc import jws, jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey

        if len(text) > LONGEST or text.count(".") != 2 or not text.isascii():
            raise BadToken("no token of ours")
        try:
            header = jws.extract_compact(text.encode()).headers()
            key = await self.keys.verifying(str(header.get("kid", "")))
            if key is None or header.get("alg") != key.algorithm or str(header.get("typ", "")).lower() != "at+jwt":
                raise BadToken("unknown key or kind")
            claims = jwt.decode(text, ECKey.import_key(dict(key.jwk)), [key.algorithm]).claims
            registry = jwt.JWTClaimsRegistry(
                now=int(self._clock()),
                leeway=LEEWAY,
                iss={"essential": True, "value": self.places.issuer},
                aud={"essential": True, "value": self.places.resource},
                exp={"essential": True},
                jti={"essential": True},
            )
            registry.validate(claims)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise BadToken("signature, issuer, audience or time") from None
        record = await self._kept(str(claims["jti"]), minted.digest(text), kind="access")
        if record is None:
            raise BadToken("not issued here")
        return record

    # What belongs to a request

    async def _exchange(self, pairs: Pairs, authorization: str | None) -> Exchange:
        client_id = grants.client_id_of(pairs, authorization)
        if client_id is not None and self.is_document(client_id):
            # Nothing is fetched for a token: such a client proves nothing of itself, its document was read when the
            # person agreed, and its code or refresh token belongs to it by name. So a site that is away ends no login.
            metadata = {"redirect_uris": [], "grant_types": list(GRANTS), "token_endpoint_auth_method": "none"}
            client: Client | None = Client(client_id, "document", metadata, 0.0)
        else:
            client = await self.client(client_id)
        return Exchange(self.places, client=client, key=await self.keys.signing(), now=self._clock())

    async def _kept(self, id: str, digest: bytes, *, kind: str = "refresh") -> Token | None:
        record = await self.store.token(id)
        if record is None or record.kind != kind or not minted.same(record.digest, digest):
            return None
        return record

    async def _consent(self, id: str | None) -> Consent | None:
        return None if id is None else await self.store.consent(id)

    async def _replayed(self, exchange: Exchange) -> None:
        """A code or refresh token came back after its use: whoever has the newer one may be a thief, so both end."""
        _LOG.warning("a code or refresh token was used again; its grant has ended")
        used = exchange.code or exchange.refresh
        if used is not None:
            await self.store.revoke_consent(used.consent, exchange.now)


def _too_many(wait: float) -> Answer:
    answer = error_answer("temporarily_unavailable", "Too many registrations; try again later.", 429)
    return replace(answer, headers=(*answer.headers, ("Retry-After", str(int(wait) + 1))))
