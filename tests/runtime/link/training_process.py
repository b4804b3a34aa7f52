"""A training process at a link server, both in this process, for tests."""

import select
from pathlib import Path

from gossipdp.protocol.schema import Schema
from gossipdp.runtime import link as links

SCHEMA = Schema.of([("weight", (30, 40), "float32", "parameter"), ("mean", (5,), "float32", "buffer")])


def pump(server: links.LinkServer, until: type | None = None) -> list[links.LinkEvent]:
    """The server's events now, or up to the first event of the type `until`."""
    events: list[links.LinkEvent] = []
    while True:
        poll = select.poll()
        for fd in server.filenos():
            poll.register(fd, select.POLLIN)
        waiting = until is not None and not any(isinstance(event, until) for event in events)
        ready = poll.poll(None if waiting else 0)
        if not ready:
            return events
        for fd, _ in ready:
            events += server.handle(fd)


def attached(server: links.LinkServer, home: Path, schema: Schema = SCHEMA) -> links.Link:
    """A training process with its region, which has written its model."""
    link = links.Link.connect(home)
    link.hello(schema)
    assert [type(event) for event in pump(server)] == [links.Attached]
    assert link.receive() == [links.RegionReady(schema.size)]
    assert link.send(links.Ready())
    assert pump(server) == [links.ModelWritten()]
    return link


def socket_exists(home: Path) -> bool:
    return links.socket_path(home).exists()
