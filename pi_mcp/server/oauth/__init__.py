"""OAuth 2.1 for the gateway: an authorization server of its own, or tokens of an outside issuer.

Comes in: requests of OAuth clients, bearer tokens. Goes out: metadata, answers, `Grant`s. It decides nothing about
tools: that is the gate's matter, by the scopes of a grant.

    places.py        addresses            registration.py  what a client says of itself
    metadata.py      documents            redirects.py     where a client may be answered
    grants.py        rules, without I/O   documents.py     clients with a metadata document
    server.py        rules + store        keys.py          signing keys and their rotation
    outside.py       tokens of others     routes.py        the HTTP endpoints
    bearer.py        what authentication asks
"""
