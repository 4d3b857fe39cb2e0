"""Who gives tokens for a server: protected-resource metadata, then the authorization server's own.

Comes in: a server's address and the challenge of its 401. Goes out: the resource, the issuer and its endpoints, all
checked, or a `PiMcpError` that says what is wrong. It registers nothing, sends no credential and opens nothing.

    challenge's resource_metadata ─► /.well-known/oauth-protected-resource/PATH ─► …/oauth-protected-resource
        └► authorization_servers ─► RFC 8414 with path ─► OpenID Connect (both ways)
    none of them: the server's own origin as of 2025-03-26: its metadata, else /authorize, /token, /register
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pi_mcp.auth.addresses import origin_of, shown_url, url_problem
from pi_mcp.auth.challenges import is_scope, of_login
from pi_mcp.errors import AuthenticationError, PiMcpError, ServerError, failure
from pi_mcp.text import clean_line, redact

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher, Reply

MOST_SERVERS = 4
"""Authorization servers of one resource that are tried."""


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """What an authorization server says about itself (RFC 8414). Endpoints are checked addresses."""

    issuer: str
    authorization_endpoint: str | None
    token_endpoint: str
    registration_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    grant_types: tuple[str, ...] | None = None
    auth_methods: tuple[str, ...] | None = None
    """`token_endpoint_auth_methods_supported`; None where it does not say."""
    code_challenge_methods: tuple[str, ...] | None = None
    prompts: tuple[str, ...] | None = None
    """`prompt_values_supported` (OpenID Connect)."""
    cimd: bool = False
    """It reads client-ID metadata documents."""
    iss_param: bool = False
    """Its callbacks always carry `iss` (RFC 9207)."""
    openid: bool = False
    """It says so much about ID tokens that it speaks OpenID Connect, and knows `prompt`."""
    guessed: bool = False
    """No metadata at all: the endpoints are those that the 2025-03-26 specification names."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """All that it published, for whoever needs more of it."""

    @property
    def pkce(self) -> bool:
        """S256 is there. An authorization server that does not say so has no PKCE (MCP authorization)."""
        return self.guessed or "S256" in (self.code_challenge_methods or ())


@dataclass(frozen=True, slots=True)
class Discovered:
    """Where to sign in for one server."""

    resource: str
    """Exactly as published (report B115); the server's address where nothing is published."""
    issuer: str
    metadata: AuthorizationServer
    scopes: tuple[str, ...] | None = None
    """`scopes_supported` of the resource; None where it does not say."""
    challenge_scopes: tuple[str, ...] | None = None
    published: bool = True
    """There are protected-resource metadata."""
    dpop_required: bool = False
    """`dpop_bound_access_tokens_required` of the resource (RFC 9728)."""


async def discover(
    fetcher: Fetcher, url: str, challenges: Iterable[str] = (), *, trust_issuer: str | bool | None = None
) -> Discovered:
    """From a server's URL and the `WWW-Authenticate` lines of its 401 to a checked authorization server.

    `trust_issuer`: one issuer that may stand in metadata found under another (report B130). Raises PiMcpError:
    `oauth_failed` for what must not be used, ServerError while something is not reachable.
    """
    search = _Search(fetcher, url, trust_issuer if isinstance(trust_issuer, str) else None)
    challenge = of_login(challenges)
    resource = await search.resource(challenge.resource_metadata if challenge else None)
    asked = challenge.scopes if challenge else None
    if resource is None:
        metadata = await search.own_origin()
        return Discovered(canonical(url), metadata.issuer, metadata, None, asked, published=False)
    servers = [one for one in _texts(resource.get("authorization_servers")) or () if one][:MOST_SERVERS]
    if servers:
        metadata = await search.first_of(servers)
    else:
        metadata = await search.own_origin()
    return Discovered(
        str(resource["resource"]),
        metadata.issuer,
        metadata,
        _scopes(resource.get("scopes_supported")),
        asked,
        dpop_required=resource.get("dpop_bound_access_tokens_required") is True,
    )


async def metadata_of(fetcher: Fetcher, issuer: str) -> AuthorizationServer:
    """The metadata of an issuer that the configuration names. Raises PiMcpError as `discover`."""
    return await _Search(fetcher, issuer, None).first_of([issuer])


def canonical(url: str) -> str:
    """A server's address as a resource: without query and fragment, and otherwise as configured (RFC 8707 §2)."""
    return url.partition("#")[0].partition("?")[0]


def resource_covers(resource: str, url: str) -> bool:
    """Whether a published resource is this server, or an origin or path above it (RFC 9728 §3.3).

    A token for another resource must not come here: a server could ask for one and use it elsewhere.
    """
    if "#" in resource or not resource.isprintable():  # RFC 8707 §2; it goes out as it is
        return False
    try:
        if origin_of(resource) != origin_of(url):
            return False
        above, own = urlsplit(resource), urlsplit(url)
    except ValueError:
        return False
    if above.query and above.query != own.query:
        return False
    base = above.path.rstrip("/")
    return own.path.rstrip("/") == base or own.path.startswith(base + "/")


def same_issuer(expected: str, received: str) -> bool:
    """Equal as strings; for an origin without a path a lone trailing slash makes no difference (report B131)."""
    if expected == received:
        return True
    bare = expected.rstrip("/")
    return bare == received.rstrip("/") and abs(len(expected) - len(received)) == 1 and bare.count("/") == 2


def resource_metadata_urls(url: str, named: str | None) -> list[str]:
    """Where protected-resource metadata may be, best first (RFC 9728 §3.1, report B116)."""
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    query = f"?{parts.query}" if parts.query else ""
    urls = [named] if named else []
    if path:
        urls.append(f"{base}/.well-known/oauth-protected-resource{path}{query}")
    urls.append(f"{base}/.well-known/oauth-protected-resource")
    return list(dict.fromkeys(urls))


def metadata_urls(issuer: str) -> list[str]:
    """Where an issuer's metadata may be (RFC 8414 §3.1 and §5, OpenID Connect Discovery §4)."""
    parts = urlsplit(issuer)
    base = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    urls = [
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}/.well-known/openid-configuration{path}",
    ]
    if path:
        urls.append(f"{base}{path}/.well-known/openid-configuration")
    return urls


class _Search:
    """One discovery. What is merely absent leads on; what must not be used ends it."""

    def __init__(self, fetcher: Fetcher, url: str, trusted: str | None) -> None:
        self.fetcher = fetcher
        self.url = url
        self.trusted = trusted

    async def resource(self, named: str | None) -> dict[str, Any] | None:
        """The protected-resource metadata of the server, checked; None where there are none."""
        problem: PiMcpError | None = None
        for place in resource_metadata_urls(self.url, named):
            value, trouble = await self.document(place)
            problem = problem or trouble
            if value is None:
                continue
            resource = value.get("resource")
            if not isinstance(resource, str) or not resource:
                continue
            if not resource_covers(resource, self.url):
                raise self.refusal(
                    f"The metadata at {shown_url(place)} are for another resource ({shown_url(resource)}).",
                    "Look at `url`; a login for another server is not used here.",
                )
            return value
        if problem is not None:
            # It may well be there: without it a login could go to the wrong place.
            raise problem
        return None

    async def first_of(self, issuers: list[str]) -> AuthorizationServer:
        """The first of these authorization servers that publishes metadata."""
        problem: PiMcpError | None = None
        for issuer in issuers:
            why = url_problem(issuer)
            if why is not None:
                raise self.refusal(f"The authorization server {shown_url(issuer)} {why}.")
            try:
                found = await self.of_issuer(issuer)
            except ServerError as error:
                problem = problem or error
                continue
            if found is not None:
                return found
        raise problem or self.refusal(
            f"The authorization server {shown_url(issuers[0])} publishes no metadata.",
            "Look at the service's documentation for another way to log in, such as a token in `headers`.",
        )

    async def own_origin(self) -> AuthorizationServer:
        """The rules of 2025-03-26: the server's own origin is the authorization server."""
        parts = urlsplit(self.url)
        origin = f"{parts.scheme}://{parts.netloc}"
        found = await self.of_issuer(origin)
        if found is not None:
            return found
        for path in ("/authorize", "/token", "/register"):
            await self.fetcher.check(origin + path, "The endpoint")
        return AuthorizationServer(origin, f"{origin}/authorize", f"{origin}/token", f"{origin}/register", guessed=True)

    async def of_issuer(self, issuer: str) -> AuthorizationServer | None:
        problem: PiMcpError | None = None
        for place in metadata_urls(issuer):
            value, trouble = await self.document(place)
            problem = problem or trouble
            if value is None or not isinstance(value.get("issuer"), str):
                continue
            if not isinstance(value.get("token_endpoint"), str):
                continue
            received = value["issuer"]
            if not same_issuer(issuer, received) and received != self.trusted:
                raise self.refusal(
                    f"The metadata of the authorization server {shown_url(issuer)} name another issuer: expected "
                    f"{_quoted(issuer)}, received {_quoted(received)}.",
                    f'If you know that they belong together, set "trustIssuer": {_quoted(received)} in `oauth`.',
                )
            return await self.checked(value)
        if problem is not None:
            raise problem
        return None

    async def checked(self, value: Mapping[str, Any]) -> AuthorizationServer:
        """The metadata as a value; every endpoint is an address that may be used."""
        issuer = value["issuer"]
        why = url_problem(issuer)
        if why is not None:
            raise self.refusal(f"The issuer {_quoted(issuer)} {why}.")
        endpoints: dict[str, str | None] = {}
        for name in (
            "authorization_endpoint",
            "token_endpoint",
            "registration_endpoint",
            "device_authorization_endpoint",
            "revocation_endpoint",
        ):
            endpoint = value.get(name)
            endpoints[name] = endpoint if isinstance(endpoint, str) and endpoint else None
            if endpoints[name] is not None:
                await self.fetcher.check(str(endpoint), f"The {name.replace('_', ' ')}")
        return AuthorizationServer(
            issuer,
            endpoints["authorization_endpoint"],
            str(endpoints["token_endpoint"]),
            endpoints["registration_endpoint"],
            endpoints["device_authorization_endpoint"],
            endpoints["revocation_endpoint"],
            scopes_supported=_scopes(value.get("scopes_supported")),
            grant_types=_texts(value.get("grant_types_supported")),
            auth_methods=_texts(value.get("token_endpoint_auth_methods_supported")),
            code_challenge_methods=_texts(value.get("code_challenge_methods_supported")),
            prompts=_texts(value.get("prompt_values_supported")),
            cimd=value.get("client_id_metadata_document_supported") is True,
            iss_param=value.get("authorization_response_iss_parameter_supported") is True,
            openid="id_token_signing_alg_values_supported" in value or "subject_types_supported" in value,
            document=dict(value),
        )

    async def document(self, place: str) -> tuple[dict[str, Any] | None, PiMcpError | None]:
        """A JSON object, or None with what may be a passing trouble. Raises for an address not to be used."""
        try:
            reply = await self.fetcher.get_json(place)
        except AuthenticationError:
            raise
        except PiMcpError as error:
            return None, error
        # A plain 500 is what careless servers say to every unknown path.
        if reply.status in (429, 502, 503, 504):
            return None, self.trouble(place, reply)
        value = reply.json() if reply.ok else None
        return (value, None) if isinstance(value, dict) else (None, None)

    def trouble(self, place: str, reply: Reply) -> PiMcpError:
        return failure(
            "connection_failed",
            "authenticate",
            self.fetcher.server,
            f"{shown_url(place)} does not answer now (HTTP {reply.status}).",
            "Try again later.",
        )

    def refusal(self, message: str, hint: str | None = None) -> PiMcpError:
        return failure(
            "oauth_failed",
            "authenticate",
            self.fetcher.server,
            message,
            hint or "The server or its authorization server is set up wrongly, or means harm; tell whoever runs it.",
        )


def _quoted(text: str) -> str:
    return f'"{redact(clean_line(text, 200))}"'


def _scopes(value: object) -> tuple[str, ...] | None:
    """A list of scopes without what is none by RFC 6749 §3.3."""
    texts = _texts(value)
    return None if texts is None else tuple(one for one in texts if is_scope(one))


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(item for item in value if isinstance(item, str))[:500]
