"""What a job reaches through a proxy: by name, what is behind it, and what jobs are told.

Pure. `rendezvous` is the job's rendezvous endpoint, `n2:9000` a port of a node, and any other
`host:port` a service on the host's side (a database, an object store).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from pytest_elastic.errors import UsageError

__all__ = ["RENDEZVOUS", "ProxyPlan", "Upstream", "environ_name", "parse_upstream"]

RENDEZVOUS = "rendezvous"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_ADDRESS = re.compile(r"(?P<host>[^\s:/]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """What a proxy connects to. `node` is "" on the host's side; the endpoint has neither part."""

    node: str = ""
    address: str = ""
    port: int = 0

    @property
    def is_rendezvous(self) -> bool:
        """Tell whether it is the job's rendezvous endpoint."""
        return not self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """A proxy to be opened. `listen` is a port of the gateway, 0 for any that is free."""

    name: str
    upstream: str
    listen: int = 0
    is_enabled: bool = True

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"cannot call a proxy {self.name!r}: letters, digits, '-' and '_' are expected,"
                " beginning with a letter"
            )
        if not 0 <= self.listen <= 65535:
            raise UsageError(f"proxy '{self.name}' cannot listen at port {self.listen}")
        parse_upstream(self.upstream, ())


def parse_upstream(text: str, nodes: Collection[str]) -> Upstream:
    """Return what a text means, given the names of the nodes; raises UsageError."""
    if text == RENDEZVOUS:
        return Upstream()
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise UsageError(
            f"a proxy cannot lead to {text!r}: '{RENDEZVOUS}', HOST:PORT or NODE:PORT is expected"
        )
    host, port = found["host"], int(found["port"])
    if host in nodes:
        return Upstream(node=host, port=port)
    return Upstream(address=text, port=port)


def environ_name(proxy: str) -> str:
    """Return the variable in which a job finds a proxy's `host:port`."""
    return f"ELASTIC_PROXY_{proxy.upper().replace('-', '_')}"
