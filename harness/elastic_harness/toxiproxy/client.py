"""The client of a Toxiproxy server, ours or another: `toxiproxy-python` with its faults mended.

The names, methods and exceptions are those of the package `toxiproxy` (0.1.1), so that code and
habits carry over. What differs, because it cost somebody an afternoon each time:

- each client has a server of its own; the package keeps host and port for the whole process
- every call ends within `timeout_s`, and goes to that server whatever HTTP_PROXY says
- every answer but success raises, with the status and the server's words
- names are quoted, and values are looked at before they are sent
- toxics, listen addresses and upstreams can be changed
- `down` leaves a proxy as it found it, and sees to it that it is up again
- a proxy whose server hangs on it (the real one does, when a reader stalls) is made anew

One client may be used by several threads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import requests
from toxiproxy import Proxy, Toxiproxy
from toxiproxy.toxic import Toxic
from typing_extensions import override

from elastic_harness.toxiproxy.errors import (
    ERROR_OF_STATUS,
    ToxiproxyConflict,
    ToxiproxyError,
    ToxiproxyInvalid,
    ToxiproxyMissing,
    ToxiproxyStuck,
    what_the_system_said,
)
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES
from elastic_harness.toxiproxy.values import (
    checked_attributes,
    checked_toxicity,
    quoted,
)
from pytest_elastic.errors import UsageError

__all__ = [
    "ProxyHandle",
    "ToxiproxyClient",
    "ToxiproxyConflict",
    "ToxiproxyError",
    "ToxiproxyInvalid",
    "ToxiproxyMissing",
    "ToxiproxyStuck",
]

# A server answers within milliseconds, on a busy machine within seconds: 5 s were met. A fault
# waits for 15 s, in which one that hangs is to be freed; the real one gives up after 25 s.
_TIMEOUT_S = 10.0
JsonObject = dict[str, Any]  # what a foreign server sends has no type of ours


@dataclass(slots=True)
class _Known:
    """What a proxy is to be like: enough to make it anew without asking a server that hangs."""

    listen: str
    upstream: str
    enabled: bool
    toxics: dict[str, JsonObject] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class ToxiproxyClient(Toxiproxy):  # type: ignore[misc]  # has no types
    """A server at `url` (`http://host:port`), and the proxies it has."""

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.timeout_s = timeout_s
        self.recoveries = 0
        self._known: dict[str, _Known] = {}

    @override
    def proxies(self) -> dict[str, ProxyHandle]:
        """Return every proxy, as it is now."""
        listed = self.call("GET", "/proxies")
        return {name: self._handle(fields) for name, fields in listed.items()}

    @override
    def get_proxy(self, proxy_name: str) -> ProxyHandle | None:
        """Return the proxy of that name, if there is one."""
        try:
            return self._handle(self.call("GET", f"/proxies/{quoted(proxy_name)}"))
        except ToxiproxyMissing:
            return None

    @override
    def create(
        self,
        upstream: str,
        name: str,
        listen: str | None = None,
        enabled: bool | None = None,
    ) -> ProxyHandle:
        """Make a proxy, on a free port of 127.0.0.1 where `listen` does not say otherwise."""
        quoted(name)
        body = {
            "name": name,
            "upstream": upstream,
            "listen": "127.0.0.1:0" if listen is None else listen,
            "enabled": enabled is not False,
        }
        return self._handle(self.call("POST", "/proxies", body))

    @override
    def destroy(self, proxy: Proxy) -> bool:
        """Remove a proxy and its connections."""
        self.call("DELETE", f"/proxies/{quoted(proxy.name)}")
        self._known.pop(proxy.name, None)
        return True

    @override
    def destroy_all(self) -> None:
        """Remove every proxy, those that others remove meanwhile included."""
        for proxy in self.proxies().values():
            with suppress(ToxiproxyMissing):
                self.destroy(proxy)

    @override
    def populate(self, proxies: Sequence[Mapping[str, object]]) -> list[ProxyHandle]:
        """Have the server make what is missing of a list, and return all that are listed."""
        answer = self.call("POST", "/populate", [dict(proxy) for proxy in proxies])
        return [self._handle(fields) for fields in answer["proxies"] or ()]

    @override
    def reset(self) -> bool:
        """Remove all toxics and enable all proxies."""
        for known in self._known.values():
            known.toxics.clear()
            known.enabled = True
        try:
            self.call("POST", "/reset")
        except ToxiproxyStuck:
            for name in list(self._known):
                self.recover(name)
        return True

    @override
    def running(self) -> bool:
        """Tell whether a server answers."""
        try:
            self.call("GET", "/version")
        except ToxiproxyError:
            return False
        return True

    @override
    def version(self) -> str:
        """Return what the server says of itself."""
        answer = self.call("GET", "/version")
        return str(answer["version"])

    @override
    def update_api_consumer(self, host: str, port: int) -> None:
        """Turn this client, and no other, to another server."""
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._known.clear()

    def call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 (JSON)
        """Send one request and return the answer's JSON; raise ToxiproxyError."""
        what = f"{method} {self.url}{path}"
        with requests.Session() as session:
            session.trust_env = False
            try:
                response = session.request(
                    method,
                    self.url + path,
                    data=None if body is None else json.dumps(body),
                    headers={"Content-Type": "application/json"},
                    timeout=self.timeout_s,
                )
            except requests.Timeout as error:
                text = (
                    f"{what}: no answer within {self.timeout_s:g} s. The server hangs, or the "
                    "machine is busy: look at it, or give ToxiproxyClient a longer timeout_s"
                )
                raise ToxiproxyStuck(text, reason="timeout") from error
            except requests.RequestException as error:
                reason = what_the_system_said(error)
                raise ToxiproxyError(f"{what}: {reason}", reason=reason) from error
        if response.ok:
            return response.json() if response.content else None
        reason = _reason(response)
        raise ERROR_OF_STATUS.get(response.status_code, ToxiproxyError)(
            f"{what}: {response.status_code} {reason}", status=response.status_code, reason=reason
        )

    def known(self, name: str) -> _Known:
        """Return what a proxy is to be like; only for its handles."""
        known = self._known.get(name)
        if known is None:
            raise ToxiproxyMissing(f"proxy {name!r} was destroyed", status=404)
        return known

    def recover(self, name: str) -> None:
        """Remove a proxy on which the server hangs, and make it anew with its toxics.

        Its connections are lost, which is what frees a server that waits for one of them.
        """
        known = self.known(name)
        with known.lock:
            with suppress(ToxiproxyMissing):
                self.call("DELETE", f"/proxies/{quoted(name)}")
            body = {
                "name": name,
                "listen": known.listen,
                "upstream": known.upstream,
                "enabled": known.enabled,
            }
            known.listen = self.call("POST", "/proxies", body)["listen"]
            for toxic in known.toxics.values():
                self.call("POST", f"/proxies/{quoted(name)}/toxics", toxic)
            self.recoveries += 1

    def _handle(self, fields: JsonObject) -> ProxyHandle:
        name: str = fields["name"]
        known = self._known.setdefault(name, _Known(listen="", upstream="", enabled=True))
        with known.lock:
            known.listen, known.upstream = fields["listen"], fields["upstream"]
            known.enabled = fields["enabled"]
            known.toxics = {toxic["name"]: toxic for toxic in fields["toxics"]}
        return ProxyHandle(self, fields)


class ProxyHandle(Proxy):  # type: ignore[misc]  # has no types
    """One proxy; `listen`, `upstream` and `enabled` are as the server last told us."""

    def __init__(self, client: ToxiproxyClient, fields: JsonObject) -> None:
        super().__init__(**fields)
        self._client = client
        self._path = f"/proxies/{quoted(self.name)}"

    @property
    def address(self) -> tuple[str, int]:
        """Return where to connect to."""
        host, _, port = self.listen.rpartition(":")
        host = host.strip("[]")
        return ("127.0.0.1" if host in ("", "::", "0.0.0.0") else host, int(port))

    def refresh(self) -> None:
        """Ask the server how the proxy is now."""
        self._take(self._client.call("GET", self._path))

    @override
    def toxics(self) -> dict[str, Toxic]:
        """Return the toxics by name."""
        listed = self._client.call("GET", f"{self._path}/toxics")
        return {fields["name"]: Toxic(**fields) for fields in listed}

    @override
    def add_toxic(
        self,
        *,
        type: str,
        stream: str = "downstream",
        name: str | None = None,
        toxicity: float = 1.0,
        attributes: Mapping[str, float] | None = None,
    ) -> Toxic:
        """Add a toxic and return it; times are in milliseconds, the slicer's in microseconds."""
        if type not in TOXIC_TYPES:
            raise UsageError(f"there is no toxic {type!r}; known are {', '.join(TOXIC_TYPES)}")
        if stream.lower() not in ("upstream", "downstream"):
            raise UsageError(f"a toxic's stream is 'upstream' or 'downstream', not {stream!r}")
        fields: JsonObject = {
            "name": name or f"{type}_{stream}",
            "type": type,
            "stream": stream,
            "toxicity": checked_toxicity(toxicity),
            "attributes": checked_attributes(type, attributes or {}, all_of_them=True),
        }
        quoted(fields["name"])
        known = self._client.known(self.name)
        with known.lock:
            if fields["name"] in known.toxics:
                self.refresh()  # perhaps somebody else has removed it
            wanted = {**known.toxics, fields["name"]: fields}
            self._change(wanted, "POST", f"{self._path}/toxics", fields)
        return Toxic(**fields)

    def update_toxic(
        self,
        name: str,
        *,
        attributes: Mapping[str, float] | None = None,
        toxicity: float | None = None,
    ) -> Toxic:
        """Change some attributes of a toxic, or its toxicity, and return it."""
        known = self._client.known(self.name)
        with known.lock:
            if name not in known.toxics:
                self.refresh()
            if name not in known.toxics:
                raise ToxiproxyMissing(f"proxy {self.name!r} has no toxic {name!r}", status=404)
            fields = dict(known.toxics[name])
            checked = checked_attributes(fields["type"], attributes or {}, all_of_them=False)
            fields["attributes"] = {**fields["attributes"], **checked}
            if toxicity is not None:
                fields["toxicity"] = checked_toxicity(toxicity)
            body = {"attributes": fields["attributes"], "toxicity": fields["toxicity"]}
            path = f"{self._path}/toxics/{quoted(name)}"
            self._change({**known.toxics, name: fields}, "PATCH", path, body)
        return Toxic(**fields)

    @override
    def destroy_toxic(self, toxic_name: str) -> bool:
        """Remove a toxic."""
        known = self._client.known(self.name)
        with known.lock:
            left = {name: toxic for name, toxic in known.toxics.items() if name != toxic_name}
            self._change(left, "DELETE", f"{self._path}/toxics/{quoted(toxic_name)}")
        return True

    def update(self, *, listen: str | None = None, upstream: str | None = None) -> None:
        """Listen elsewhere, or lead elsewhere; connections are closed."""
        wanted = {"listen": listen, "upstream": upstream}
        self._set({key: value for key, value in wanted.items() if value is not None})

    @override
    def enable(self) -> None:
        """Listen, at the same address as before."""
        self._set({"enabled": True})

    @override
    def disable(self) -> None:
        """Close every connection and refuse new ones."""
        self._set({"enabled": False})

    @override
    @contextmanager
    def down(self) -> Iterator[ProxyHandle]:
        """Be off within the block, and afterwards as before it; blocks may be nested."""
        self.refresh()
        was_enabled: bool = self.enabled
        self.disable()
        try:
            yield self
        finally:
            if was_enabled:
                with suppress(ToxiproxyMissing):  # destroyed in the block: there is nothing to mend
                    self.enable()

    @override
    def destroy(self) -> bool:
        """Remove the proxy and its connections."""
        return self._client.destroy(self)

    def _set(self, body: JsonObject) -> None:
        known = self._client.known(self.name)
        with known.lock:
            known.enabled = body.get("enabled", known.enabled)
            try:
                self._take(self._client.call("POST", self._path, body))
            except ToxiproxyStuck:
                known.listen = body.get("listen", known.listen)
                known.upstream = body.get("upstream", known.upstream)
                self._client.recover(self.name)
                self.refresh()
        if self.enabled != known.enabled:
            state = "off" if known.enabled else "on"
            raise ToxiproxyError(f"proxy {self.name!r} at {self.listen} is still {state}")

    def _change(
        self, toxics: dict[str, JsonObject], method: str, path: str, body: object = None
    ) -> None:
        """Make one change that leaves these toxics; where the server hangs, make the proxy anew."""
        known = self._client.known(self.name)
        try:
            self._client.call(method, path, body)
        except ToxiproxyStuck:
            known.toxics = toxics
            self._client.recover(self.name)
            self.listen = known.listen
        known.toxics = toxics

    def _take(self, fields: JsonObject) -> None:
        self.listen, self.upstream = fields["listen"], fields["upstream"]
        self.enabled = fields["enabled"]
        known = self._client.known(self.name)
        known.listen, known.upstream = self.listen, self.upstream
        known.toxics = {toxic["name"]: toxic for toxic in fields["toxics"]}


def _reason(response: requests.Response) -> str:
    """Return the server's words."""
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return response.text.strip()
