"""The rules of the embedded authorization server: Authlib's grants over values, without I/O.

Comes in: a request's parameters, and the records that the store has for them. Goes out: an `Answer`, and what the
store is to do about it (`made_code`, `made_tokens`, `replayed`, `revoke`). The caller does that and only then answers,
so that of two requests with one code or refresh token exactly one succeeds.

Authlib is asked who the client is, whether grant, redirect, scope and PKCE are right, and what the error is called.
Ours on top: S256 alone and always, resource indicators (RFC 8707), and the redirect rules of `redirects.py`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pi_mcp.access import Client, Code, Consent, Scopes, SigningKey, Token
from pi_mcp.access import secrets as minted
from pi_mcp.server.oauth import redirects
from pi_mcp.server.oauth.metadata import DEFAULT_SCOPES
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.registration import known_scopes

CODE_LIFE = 60.0
"""Seconds from a person's yes to the token request."""
ACCESS_LIFE = 3600.0
REFRESH_LIFE = 30 * 24 * 3600.0
"""Seconds that a refresh token may lie unused."""
CONSENT_LIFE = 180 * 24 * 3600.0
"""Seconds after which a person is asked anew, however often tokens were renewed."""

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: a JSON object, or a redirect (`location`)."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    location: str | None = field(default=None, repr=False)


class Refused(Exception):
    """An authorization request that gets no consent page.

    `redirect` is where the client is told; None: the redirect address is not to be trusted, so a page says it.
    """

    def __init__(self, error: str, description: str, redirect: str | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.description = description
        self.redirect = redirect


@dataclass(frozen=True, slots=True)
class Asked:
    """An authorization request that is in order: what a person is asked."""

    client: Client
    redirect_uri: str
    scopes: Scopes
    challenge: str = field(repr=False)
    state: str | None = field(default=None, repr=False)


@dataclass
class Exchange:
    """One request to the token or revocation endpoint: the records that belong to it, and what is to be done."""

    places: Places
    client: Client | None = None
    code: Code | None = None
    refresh: Token | None = None
    consent: Consent | None = None
    key: SigningKey | None = field(default=None, repr=False)
    now: float = field(default_factory=time.time)
    made_tokens: list[Token] = field(default_factory=list, repr=False)
    replayed: bool = False
    """The code or refresh token had been used: everything that came of it is to end."""
    revoke: Token | None = None

    @property
    def live_consent(self) -> Consent | None:
        return self.consent if self.consent is not None and self.consent.valid(self.now) else None


# Authorization requests


def read_authorization(pairs: Pairs, client: Client | None, places: Places) -> Asked:
    """Check an authorization request. `client` is the record of its `client_id`. Raises Refused."""
    from authlib.oauth2.rfc6749.errors import OAuth2Error

    values = _once(pairs)
    redirect = values.get("redirect_uri")
    if client is None:
        raise Refused("invalid_client", "The client is not known here, or its metadata document cannot be used.")
    if redirect is None and len(client.metadata["redirect_uris"]) == 1:
        redirect = str(client.metadata["redirect_uris"][0])
    # Before anything else: an address that is not the client's is never redirected to, and never repeated.
    if redirect is None or not redirects.registered(redirect, client.metadata["redirect_uris"]):
        raise Refused("invalid_request", "The redirect address is not one that the client registered.")
    if len({name for name, _ in pairs if name != "resource"}) != len([1 for name, _ in pairs if name != "resource"]):
        raise Refused("invalid_request", "A parameter is given more than once.", redirect)
    if values.get("response_type") != "code":
        raise Refused("unsupported_response_type", "Only response_type=code is supported.", redirect)
    if "request" in values or "request_uri" in values:
        raise Refused("request_not_supported", "Request objects are not supported.", redirect)
    exchange = Exchange(places, client=client)
    try:
        grant = _server(exchange).get_consent_grant(_request("GET", places, pairs))
        scopes = known_scopes(grant.request.scope)
    except OAuth2Error as error:
        raise Refused(str(error.error), str(error.description), redirect) from None
    except ValueError:  # Authlib: its own description would repeat characters that none may have
        raise Refused("invalid_request", "A parameter holds characters that it may not have.", redirect) from None
    return Asked(client, redirect, scopes, values["code_challenge"], values.get("state"))


def refusal_answer(refused: Refused, state: str | None, places: Places) -> Answer:
    """Tell the client by redirect (RFC 6749 §4.1.2.1, with `iss` as in RFC 9207)."""
    parameters = [("error", refused.error), ("error_description", refused.description)]
    return _redirect(refused.redirect or "", parameters, state, places)


def code_answer(asked: Asked, code: str, places: Places) -> Answer:
    return _redirect(asked.redirect_uri, [("code", code)], asked.state, places)


def new_code(asked: Asked, consent: Consent, now: float) -> tuple[str, Code]:
    """A code for a person's yes: its text for the client, its record for the store."""
    made = minted.mint("code")
    return made.text, Code(
        made.id,
        made.digest,
        consent.id,
        asked.client.id,
        asked.redirect_uri,
        consent.scopes,
        consent.resource,
        asked.challenge,
        now,
        now + CODE_LIFE,
    )


def _redirect(uri: str, parameters: list[tuple[str, str]], state: str | None, places: Places) -> Answer:
    from authlib.common.urls import add_params_to_uri

    given = [*parameters, *([("state", state)] if state else []), ("iss", places.issuer)]
    return Answer(302, location=add_params_to_uri(uri, given))


# Token and revocation requests


def client_id_of(pairs: Pairs, authorization: str | None) -> str | None:
    """Which client a token request is from, by its Basic credentials or its form; not yet proven."""
    from authlib.oauth2.rfc6749.util import extract_basic_authorization

    if authorization and authorization.lower().startswith("basic "):
        try:
            found = extract_basic_authorization({"Authorization": authorization})[0]
        except ValueError:
            return None
        return str(found) if found else None
    return _once(pairs).get("client_id")


def token_answer(pairs: Pairs, authorization: str | None, exchange: Exchange) -> Answer:
    """Answer a token request. The caller carries out `exchange` before it sends this."""
    return _answered(pairs, authorization, exchange, lambda server, request: server.create_token_response(request))


def revocation_answer(pairs: Pairs, authorization: str | None, exchange: Exchange) -> Answer:
    """Answer a revocation request (RFC 7009): 200 also where there is no such token."""
    return _answered(
        pairs,
        authorization,
        exchange,
        lambda server, request: server.create_endpoint_response("revocation", request),
    )


def error_answer(error: str, description: str, status: int = 400) -> Answer:
    return Answer(status, {"error": error, "error_description": description}, _NO_STORE)


_NO_STORE = (("Cache-Control", "no-store"), ("Pragma", "no-cache"))


def _answered(pairs: Pairs, authorization: str | None, exchange: Exchange, work: Any) -> Answer:
    names = [name for name, _ in pairs if name != "resource"]
    if len(set(names)) != len(names):
        return error_answer("invalid_request", "A parameter is given more than once.")
    values = dict(pairs)
    if authorization and authorization.lower().startswith("basic ") and "client_secret" in values:
        return error_answer("invalid_request", "The client proves itself in two ways at once.")
    if not _ours(pairs, exchange.places):
        return error_answer("invalid_target", "That resource is not served here.")
    try:
        status, body, headers = work(_server(exchange), _request("POST", exchange.places, pairs, authorization))
    except ValueError:  # as in read_authorization; also Basic credentials that are no text
        return error_answer("invalid_request", "A parameter holds characters that it may not have.")
    return Answer(status, body, tuple((str(name), str(value)) for name, value in headers))


def _ours(pairs: Pairs, places: Places) -> bool:
    return all(value in places.resources for name, value in pairs if name == "resource")


def _once(pairs: Pairs) -> dict[str, str]:
    """The first value of each parameter; one without a value counts as absent (RFC 6749 §3.1)."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if value:
            found.setdefault(name, value)
    return found


def _request(method: str, places: Places, pairs: Pairs, authorization: str | None = None) -> Any:
    headers = {"Authorization": authorization} if authorization else {}
    return _authlib().Request(method, places.issuer, pairs, headers)


def _server(exchange: Exchange) -> Any:
    return _authlib().server(exchange)


# What Authlib asks of our records


class _ClientFace:
    """A `Client` as Authlib's ClientMixin."""

    def __init__(self, record: Client) -> None:
        self.record = record

    @property
    def client_id(self) -> str:
        return self.record.id

    def get_client_id(self) -> str:
        return self.record.id

    def get_default_redirect_uri(self) -> str | None:
        uris = self.record.metadata["redirect_uris"]
        return str(uris[0]) if len(uris) == 1 else None

    def get_allowed_scope(self, scope: str | None) -> str | None:
        """What of it we know; None (invalid_scope) where nothing is."""
        asked = known_scopes(scope) if scope else Scopes.of(DEFAULT_SCOPES)
        limit = self.record.metadata.get("scope")
        if limit and not scope:
            asked = Scopes.parse(limit)
        return str(asked) or None

    def check_redirect_uri(self, uri: str) -> bool:
        return redirects.registered(uri, self.record.metadata["redirect_uris"])

    def check_client_secret(self, secret: str) -> bool:
        kept = self.record.secret_digest
        return kept is not None and minted.same(kept, minted.digest(secret))

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        del endpoint
        # A secret proves the client whichever way it is sent; without one it is a public client.
        return (method == "none") == (self.record.secret_digest is None)

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.record.metadata["grant_types"]


class _CodeFace:
    """A `Code` as Authlib's AuthorizationCodeMixin, and what its PKCE check reads."""

    code_challenge_method = "S256"

    def __init__(self, record: Code, redirect_uri: str | None) -> None:
        self.code_challenge = record.challenge
        self.record = record
        self._said = redirect_uri

    def get_redirect_uri(self) -> str | None:
        """What a `redirect_uri` of the token request has to be: in OAuth 2.1 there is none, PKCE is in its place."""
        return None if self._said is None else self.record.redirect_uri

    def get_scope(self) -> str:
        return str(self.record.scopes)


class _TokenFace:
    """A `Token` as Authlib's TokenMixin."""

    def __init__(self, record: Token, exchange: Exchange) -> None:
        self.record = record
        self._exchange = exchange

    def check_client(self, client: _ClientFace) -> bool:
        if self.record.client != client.record.id:
            return False
        if self.record.kind == "refresh" and self.record.used is not None:
            self._exchange.replayed = True
            return False
        return True

    def get_scope(self) -> str:
        return str(self.record.scopes)


def _issued(exchange: Exchange, client: _ClientFace, scope: str, *, refreshable: bool) -> dict[str, Any]:
    """Make the tokens of one answer, and note their records."""
    from joserfc import jwt
    from joserfc.jwk import ECKey

    consent, key, now = exchange.consent, exchange.key, exchange.now
    if consent is None or key is None:
        raise RuntimeError("tokens are made for a consent, with a key")
    old = exchange.refresh
    family = old.family if old is not None else minted.new_id("f")
    scopes = Scopes.parse(scope)
    ends = consent.expires if consent.expires is not None else now + CONSENT_LIFE
    token_id = minted.new_id("a")
    expires = min(now + ACCESS_LIFE, ends)
    claims = {
        "iss": exchange.places.issuer,
        "sub": consent.subject,
        "aud": consent.resource,
        "client_id": client.record.id,
        "iat": int(now),
        "exp": int(expires),
        "jti": token_id,
        "scope": str(scopes),
    }
    # RFC 9068: the type keeps it from being taken for another kind of JWT.
    header = {"alg": key.algorithm, "kid": key.id, "typ": "at+jwt"}
    text = jwt.encode(header, claims, ECKey.import_key(dict(key.jwk)), [key.algorithm])

    def record(kind: Any, id: str, digest: bytes, its: Scopes, until: float) -> Token:
        return Token(
            id,
            digest,
            kind,
            family,
            consent.id,
            client.record.id,
            consent.subject,
            its,
            consent.resource,
            now,
            until,
        )

    exchange.made_tokens.append(record("access", token_id, minted.digest(text), scopes, expires))
    answer = {
        "access_token": text,
        "token_type": "Bearer",
        "expires_in": max(int(expires - now), 1),
        "scope": str(scopes),
    }
    if refreshable:
        made = minted.mint("refresh")
        # The next refresh token has all that was granted, also where less was asked for this time (RFC 6749 §6).
        whole = old.scopes if old is not None else scopes
        exchange.made_tokens.append(record("refresh", made.id, made.digest, whole, min(now + REFRESH_LIFE, ends)))
        answer["refresh_token"] = made.text
    return answer


@dataclass(frozen=True)
class _Authlib:
    Request: Any
    server: Any


@functools.cache
def _authlib() -> _Authlib:
    """Our subclasses of Authlib's classes; made when first used, since Authlib is loaded only then."""
    from authlib.oauth2.rfc6749 import AuthorizationServer, OAuth2Request
    from authlib.oauth2.rfc6749.errors import InvalidGrantError, InvalidRequestError, OAuth2Error
    from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, RefreshTokenGrant
    from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
    from authlib.oauth2.rfc7009 import RevocationEndpoint
    from authlib.oauth2.rfc7636 import CodeChallenge

    # On debug it logs the tokens that it hands out.
    logging.getLogger("authlib").setLevel(logging.WARNING)

    methods = ["none", "client_secret_basic", "client_secret_post"]

    class InvalidTarget(OAuth2Error):  # type: ignore[misc]
        error = "invalid_target"

    class Payload(BasicOAuth2Payload):  # type: ignore[misc]
        def __init__(self, pairs: Pairs) -> None:
            super().__init__(_once(pairs))
            self._datalist: dict[str, list[str]] = {}
            for name, value in pairs:
                self._datalist.setdefault(name, []).append(value)

    class Request(OAuth2Request):  # type: ignore[misc]
        def __init__(self, method: str, uri: str, pairs: Pairs, headers: Mapping[str, str]) -> None:
            super().__init__(method, uri, headers=headers)
            self.payload = Payload(pairs)
            self.pairs = pairs

        @property
        def form(self) -> dict[str, str]:
            return dict(self.payload.data)

        @property
        def args(self) -> dict[str, str]:
            return dict(self.payload.data)

    class S256(CodeChallenge):  # type: ignore[misc]
        DEFAULT_CODE_CHALLENGE_METHOD = "S256"
        SUPPORTED_CODE_CHALLENGE_METHOD = ["S256"]  # noqa: RUF012 - Authlib's own
        CODE_CHALLENGE_METHODS = {"S256": CodeChallenge.CODE_CHALLENGE_METHODS["S256"]}  # noqa: RUF012

        def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
            data = grant.request.payload.data
            # RFC 7636: without a method it would be `plain`.
            if data.get("code_challenge_method") != "S256" or len(data.get("code_challenge", "")) != 43:
                raise InvalidRequestError("PKCE with code_challenge_method=S256 is required.")
            super().validate_code_challenge(grant, redirect_uri)
            if not _ours(grant.request.pairs, grant.server.exchange.places):
                raise InvalidTarget("That resource is not served here.")

    class CodeGrant(AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = methods

        def query_authorization_code(self, code: str, client: _ClientFace) -> _CodeFace | None:
            del code  # the caller looked it up
            exchange = self.server.exchange
            record = exchange.code
            if record is None or record.client != client.record.id:
                return None
            if record.used is not None:
                exchange.replayed = True
                return None
            if exchange.now >= record.expires:
                return None
            return _CodeFace(record, self.request.payload.data.get("redirect_uri"))

        def authenticate_user(self, authorization_code: _CodeFace) -> Consent | None:
            del authorization_code
            return self.server.exchange.live_consent  # type: ignore[no-any-return]

        def delete_authorization_code(self, authorization_code: _CodeFace) -> None:
            """The store does it, in one step with keeping the tokens."""

    class RefreshGrant(RefreshTokenGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = methods
        INCLUDE_NEW_REFRESH_TOKEN = True

        def authenticate_refresh_token(self, refresh_token: str) -> _TokenFace | None:
            del refresh_token
            exchange = self.server.exchange
            record = exchange.refresh
            if record is None or record.revoked is not None or exchange.now >= record.expires:
                return None
            return _TokenFace(record, exchange)

        def authenticate_user(self, refresh_token: _TokenFace) -> Consent:
            del refresh_token
            consent = self.server.exchange.live_consent
            if consent is None:
                raise InvalidGrantError("The grant has ended.")
            return consent  # type: ignore[no-any-return]

        def _validate_token_scope(self, token: _TokenFace) -> None:
            scope = self.request.payload.scope
            if scope and not (known_scopes(scope).tokens and known_scopes(scope).within(token.record.scopes)):
                super()._validate_token_scope(token)

        def issue_token(self, user: Consent, refresh_token: _TokenFace) -> Any:
            asked = known_scopes(self.request.payload.scope or "")
            scope = str(asked) or refresh_token.get_scope()
            return self.generate_token(user=user, scope=scope, include_refresh_token=True)

        def revoke_old_credential(self, refresh_token: _TokenFace) -> None:
            """The store does it, in one step with keeping the new ones."""

    class Revocation(RevocationEndpoint):  # type: ignore[misc]
        CLIENT_AUTH_METHODS = methods

        def check_params(self, request: Any, client: Any) -> None:
            del client
            # RFC 7009 §2.1: a hint that is not understood is ignored.
            if "token" not in request.form:
                raise InvalidRequestError("There is no `token`.")

        def query_token(self, token: str, hint: str | None) -> _TokenFace | None:
            del token, hint
            record = self.server.exchange.refresh
            return None if record is None else _TokenFace(record, Exchange(self.server.exchange.places))

        def revoke_token(self, token: _TokenFace, request: Any) -> None:
            del request
            self.server.exchange.revoke = token.record

    class Server(AuthorizationServer):  # type: ignore[misc]
        def __init__(self, exchange: Exchange) -> None:
            super().__init__()
            self.exchange = exchange
            self.register_grant(CodeGrant, [S256(required=True)])
            self.register_grant(RefreshGrant)
            self.register_endpoint(Revocation)
            self.register_token_generator("default", self._generate)

        def _generate(self, grant_type: str, client: _ClientFace, **asked: Any) -> dict[str, Any]:
            del grant_type
            return _issued(self.exchange, client, asked["scope"], refreshable=bool(asked["include_refresh_token"]))

        def query_client(self, client_id: str) -> _ClientFace | None:
            record = self.exchange.client
            return _ClientFace(record) if record is not None and record.id == client_id else None

        def save_token(self, token: Any, request: Any) -> None:
            """The store does it, in one step with using the code or refresh token up."""

        def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
            """Nobody listens."""

        def create_oauth2_request(self, request: Any) -> Any:
            return request

        def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, Any, Any]:
            return status, body, headers

    return _Authlib(Request, Server)
