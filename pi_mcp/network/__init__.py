"""Which proxy and which certificates the environment names for an address, and what the network's own words mean.

Comes in: an address and the environment of a configuration; codes and headers. Goes out: a proxy's URL, a TLS context,
plain words. It contacts nobody, and never turns certificate checks off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> str | None:
    """The proxy's URL that `environ` names for this address, or None. Lower-case names win, as in curl.

    An upper-case HTTP_PROXY is ignored under CGI, where a request header could have set it (CVE-2016-5385).
    """

    def variable(name: str) -> str:
        upper = "" if name == "http_proxy" and "REQUEST_METHOD" in environ else environ.get(name.upper(), "")
        return (environ.get(name) or upper).strip()

    proxy = variable(f"{scheme}_proxy") or variable("all_proxy")
    if not proxy or _bypasses(host.lower(), port, variable("no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypasses(host: str, port: int, no_proxy: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        address = None
    for entry in re.split(r"[\s,]+", no_proxy.lower()):
        if not entry:
            continue
        if entry == "*":
            return True
        name, colon, digits = entry.rpartition(":")
        if colon and digits.isdigit() and (":" not in name or name.endswith("]")):
            if int(digits) != port:
                continue
            entry = name
        entry = entry.strip("[]")
        if address is not None:
            try:
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:
                pass
            continue
        entry = entry.removeprefix("*").removeprefix(".")
        if entry and (host == entry or host.endswith("." + entry)):
            return True
    return False


_CERTIFICATE_FAULTS = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is self-signed and not trusted here",
    19: "the certificate chain ends in an authority that is not trusted here",
    20: "the certificate's authority is not known here",
    21: "the certificate's authority is not known here",
    62: "the certificate is for another host name",
    64: "the certificate is for another address",
}


def certificate_fault(verify_code: int) -> str:
    """What OpenSSL's code for a certificate that was not accepted means, as part of a sentence."""
    return _CERTIFICATE_FAULTS.get(verify_code, "the certificate could not be verified")


def packed_again(content_encoding: str | None) -> bool:
    """Whether a body is compressed more than once: a few bytes of it unpack to so much that the event loop, where
    that is done, would stand still for minutes. No honest server does it.
    """
    codings = [one.strip().lower() for one in (content_encoding or "").split(",")]
    return sum(one not in ("", "identity") for one in codings) > 1


_contexts: dict[tuple[str, str], ssl.SSLContext] = {}


def _build_context(cert_file: str, cert_dir: str) -> ssl.SSLContext:
    import ssl

    if cert_file or cert_dir:
        return ssl.create_default_context(cafile=cert_file or None, capath=cert_dir or None)
    import httpx2

    return httpx2.create_ssl_context(trust_env=False)


async def shared_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS context of all connections with the same SSL_CERT_FILE and SSL_CERT_DIR (report B062).

    Built once, in a thread: it reads a few hundred certificates, about 50 ms. Raises OSError (`ssl.SSLError`
    is one) where the variables name nothing usable.
    """
    import asyncio

    key = (environ.get("SSL_CERT_FILE", ""), environ.get("SSL_CERT_DIR", ""))
    context = _contexts.get(key)
    if context is None:
        context = await asyncio.to_thread(_build_context, *key)
        context = _contexts.setdefault(key, context)
    return context


def plain_context() -> ssl.SSLContext:
    """For addresses without TLS: trusts nobody, so that it could not be used by mistake; costs nothing."""
    context = _contexts.get(("", "\0"))
    if context is None:
        import ssl

        context = _contexts.setdefault(("", "\0"), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return context
