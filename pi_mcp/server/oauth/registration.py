"""What an OAuth client says of itself, checked: dynamic registration (RFC 7591) and metadata documents alike.

Comes in: JSON from anybody. Goes out: the metadata that we keep, all of it of known kinds and bounded, or the error
that RFC 7591 §3.2.2 has for it. Nothing is fetched: addresses of logos, policies and keys are never opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pi_mcp.access import MalformedScope, Scopes
from pi_mcp.server.oauth import redirects
from pi_mcp.text import clean_line

MOST_REDIRECTS = 10
LONGEST_NAME = 80
"""Characters of a client's name; what is longer is cut."""
AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
GRANTS = ("authorization_code", "refresh_token")


class BadMetadata(ValueError):
    """Metadata that no client is made of. `description` is ours and repeats nothing that was sent."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(error)
        self.error = error
        self.description = description


def accepted(said: object, *, document: bool = False) -> dict[str, Any]:
    """The metadata that is kept; `document`: it comes from a metadata document, so the client has no secret.

    Raises BadMetadata. What we do not know is left out, as RFC 7591 §2 has it.
    """
    if not isinstance(said, Mapping):
        raise BadMetadata("invalid_client_metadata", "The metadata is not a JSON object.")
    method = said.get("token_endpoint_auth_method")
    if method is None:
        method = "none" if document else "client_secret_basic"
    if method not in (("none",) if document else AUTH_METHODS):
        raise BadMetadata("invalid_client_metadata", "That token_endpoint_auth_method is not supported.")
    kept: dict[str, Any] = {
        "redirect_uris": _redirects(said.get("redirect_uris")),
        "token_endpoint_auth_method": method,
        "grant_types": _grants(said.get("grant_types")),
        "response_types": ["code"],
    }
    responses = said.get("response_types")
    if responses is not None and not (_strings(responses) and "code" in responses):
        raise BadMetadata("invalid_client_metadata", "response_types has to contain `code`.")
    name = said.get("client_name")
    if name is not None:
        if not isinstance(name, str):
            raise BadMetadata("invalid_client_metadata", "client_name is not a string.")
        # Shown to a person who decides by it: no control byte, nothing invisible, nothing that turns text around.
        if cleaned := clean_line(name, LONGEST_NAME):
            kept["client_name"] = cleaned
    site = said.get("client_uri")
    if isinstance(site, str) and _plain_https(site):
        kept["client_uri"] = site
    if (scope := said.get("scope")) is not None:
        if not isinstance(scope, str) or len(scope) > 4000:
            raise BadMetadata("invalid_client_metadata", "scope is not a string of scopes.")
        if asked := str(known_scopes(scope)):
            kept["scope"] = asked
    return kept


def known_scopes(text: str) -> Scopes:
    """The scopes of ours in a text; others (openid, offline_access …) are left out, as RFC 6749 §3.3 allows."""
    found: list[str] = []
    for token in text.split()[:200]:
        try:
            found.extend(Scopes.of((token,)))
        except MalformedScope:
            continue
    return Scopes.of(found)


def _redirects(said: Any) -> list[str]:
    if not _strings(said) or not said:
        raise BadMetadata("invalid_redirect_uri", "redirect_uris has to be a list of addresses.")
    uris: list[str] = list(dict.fromkeys(said))
    if len(uris) > MOST_REDIRECTS:
        raise BadMetadata("invalid_redirect_uri", f"There are more than {MOST_REDIRECTS} redirect addresses.")
    for position, uri in enumerate(uris):
        problem = redirects.problem_of(uri)
        if problem is not None:
            raise BadMetadata("invalid_redirect_uri", f"Redirect address {position + 1} {problem}.")
    return uris


def _grants(said: Any) -> list[str]:
    if said is None:
        return list(GRANTS)
    if not _strings(said) or "authorization_code" not in said:
        raise BadMetadata("invalid_client_metadata", "grant_types has to contain authorization_code.")
    return [grant for grant in GRANTS if grant in said]


def _strings(said: object) -> bool:
    return isinstance(said, list) and len(said) <= 100 and all(isinstance(one, str) for one in said)


def _plain_https(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            len(text) <= 300
            and text.isprintable()
            and " " not in text
            and parts.scheme == "https"
            and bool(parts.hostname)
            and "@" not in parts.netloc
        )
    except ValueError:
        return False
