"""Credentials for HTTP servers: OAuth flows, the store of what was granted, and the bearer of traffic.

Comes in: a resolved server, and a person's explicit wish to sign in. Goes out: headers for its requests. Nothing
here opens a browser or registers a client but a login that was asked for (DESIGN §8).
"""
