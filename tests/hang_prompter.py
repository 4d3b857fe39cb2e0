"""Owns the bus name of gnome-keyring's prompter and never answers: a person who is away.

Comes in: a session bus. Goes out: one line once the name is owned. Runs until it is killed.
"""

from __future__ import annotations

import contextlib

from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

connection = open_dbus_connection(bus="SESSION")
connection.send_and_get_reply(message_bus.RequestName("org.gnome.keyring.SystemPrompter"))
print("away", flush=True)
while True:
    with contextlib.suppress(TimeoutError):
        connection.receive(timeout=1)
