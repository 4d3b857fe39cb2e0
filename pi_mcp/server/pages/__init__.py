"""The pages of the gateway for people: signing in, consent, status. Rendered here, without scripts.

Comes in: requests of a browser. Goes out: HTML that loads nothing, can be framed by nobody and sends its forms back to
where it came from.
"""
