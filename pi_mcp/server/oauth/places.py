"""Where everything of the gateway's OAuth is, told from the address by which clients know the gateway.

Comes in: `--public-url`. Goes out: issuer, resource, endpoints, well-known locations, as texts that are compared letter
by letter. It does no I/O and knows no request: a `Host` header never decides what is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pi_mcp.auth.addresses import loopback_host
from pi_mcp.errors import failure
from pi_mcp.text import clean_line

MCP = "/mcp"
ALIAS = "/mcp/oauth"
AUTHORIZE = "/oauth/authorize"
TOKEN = "/oauth/token"  # noqa: S105 - a path
REGISTER = "/oauth/register"
REVOKE = "/oauth/revoke"
JWKS = "/oauth/jwks"
SIGN_IN = "/signin"
LINK = "/signin/link"
SIGN_OUT = "/signout"
STATUS = "/status"
PROTECTED = "/.well-known/oauth-protected-resource"
SERVER_METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of one gateway. `issuer` is its origin without a slash at the end."""

    issuer: str

    @classmethod
    def of(cls, public_url: str) -> Places:
        """From `--public-url`: an origin, or that with `/mcp`. Raises PiMcpError `usage` for anything else.

        https, or http on this machine: tokens and cookies go over it.
        """
        problem = None
        try:
            parts = urlsplit(public_url.strip())
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise _unusable(public_url, "is no address") from None
        scheme = parts.scheme.lower()
        if scheme not in ("http", "https") or not host or not host.isascii() or not public_url.strip().isprintable():
            problem = "is no https address"
        elif "@" in parts.netloc or parts.query or parts.fragment:
            problem = "holds more than a host and a port"
        elif parts.path.rstrip("/") not in ("", MCP):
            problem = "has a path other than /mcp, where the gateway is"
        elif scheme == "http" and not loopback_host(host):
            problem = "is not https"
        if problem is not None:
            raise _unusable(public_url, problem)
        shown = f"[{host}]" if ":" in host else host
        default = 443 if scheme == "https" else 80
        return cls(f"{scheme}://{shown}" + (f":{port}" if port not in (None, default) else ""))

    @property
    def resource(self) -> str:
        """The canonical resource (RFC 8707): the audience of every token, with no slash at its end."""
        return self.issuer + MCP

    @property
    def resources(self) -> tuple[str, ...]:
        """What a client may name as `resource`; each of them means `resource`."""
        return (self.resource, self.issuer + ALIAS, self.issuer, f"{self.issuer}/", f"{self.resource}/")

    @property
    def secure(self) -> bool:
        return self.issuer.startswith("https:")

    def at(self, path: str) -> str:
        return self.issuer + path

    def resource_metadata(self, path: str = MCP) -> str:
        """The address of the protected resource's metadata, for `WWW-Authenticate` (RFC 9728 §5.1)."""
        return f"{self.issuer}{PROTECTED}{ALIAS if path.rstrip('/') == ALIAS else MCP}"


def _unusable(public_url: str, problem: str) -> Exception:
    return failure(
        "usage",
        "configure",
        None,
        f"--public-url {clean_line(public_url.rpartition('@')[2], 160)} {problem}.",
        "Give the address by which clients reach the gateway, such as https://mcp.example.com.",
    )
