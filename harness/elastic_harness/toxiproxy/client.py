"""The client of a Toxiproxy server, ours or another: `toxiproxy-python` with its faults mended.

The names, methods and exceptions are those of the package `toxiproxy` (0.1.1), so that code and
habits carry over. What differs, because each cost a user an afternoon:

- each client has a server of its own; the package keeps host and port for the whole process
- every call ends within `timeout_s`, and goes to that server whatever HTTP_PROXY says
- every answer but success raises, with the status and the server's words
- names are quoted, and attributes are looked at before they are sent
- toxics, listen addresses and upstreams can be changed
- `down` leaves a proxy as it found it, and sees to it that it is up again
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import requests
from toxiproxy import Proxy, Toxiproxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists
from toxiproxy.toxic import Toxic
from typing_extensions import override

from elastic_harness.toxiproxy.toxics import TOXIC_TYPES, checked_attributes
from pytest_elastic.errors import ElasticError, UsageError

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


class ToxiproxyError(ElasticError):
    """A server refused, or did not answer; `status` is None where there was no answer."""

    def __init__(self, message: str, *, status: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ToxiproxyInvalid(ToxiproxyError, InvalidToxic):  # type: ignore[misc]  # has no types
    """The server could not make sense of the request (400)."""


class ToxiproxyMissing(ToxiproxyError, NotFound):  # type: ignore[misc]  # has no types
    """There is no proxy or toxic of that name (404)."""


class ToxiproxyConflict(ToxiproxyError, ProxyExists):  # type: ignore[misc]  # has no types
    """There is a proxy or toxic of that name already (409)."""


class ToxiproxyStuck(ToxiproxyError):
    """The server did not answer in time, or gave up on itself (503)."""


_ERROR_OF_STATUS = {
    400: ToxiproxyInvalid,
    404: ToxiproxyMissing,
    409: ToxiproxyConflict,
    503: ToxiproxyStuck,
}


class ToxiproxyClient(Toxiproxy):  # type: ignore[misc]  # has no types
    """A server at `url` (`http://host:port`), and the proxies it has."""

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.timeout_s = timeout_s

    @override
    def proxies(self) -> dict[str, ProxyHandle]:
        """Return every proxy, as it is now."""
        listed = self.call("GET", "/proxies")
        return {name: ProxyHandle(self, fields) for name, fields in listed.items()}

    @override
    def get_proxy(self, proxy_name: str) -> ProxyHandle | None:
        """Return the proxy of that name, if there is one."""
        try:
            return ProxyHandle(self, self.call("GET", _path("proxies", proxy_name)))
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
        _path(name)
        body = {
            "name": name,
            "upstream": upstream,
            "listen": "127.0.0.1:0" if listen is None else listen,
            "enabled": enabled is not False,
        }
        return ProxyHandle(self, self.call("POST", "/proxies", body))

    @override
    def destroy(self, proxy: Proxy) -> bool:
        """Remove a proxy and its connections."""
        self.call("DELETE", _path("proxies", proxy.name))
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
        return [ProxyHandle(self, fields) for fields in answer["proxies"] or ()]

    @override
    def reset(self) -> bool:
        """Remove all toxics and enable all proxies."""
        self.call("POST", "/reset")
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
        return str(self.call("GET", "/version")["version"])

    @override
    def update_api_consumer(self, host: str, port: int) -> None:
        """Turn this client, and no other, to another server."""
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

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
                reason = _what_the_system_said(error)
                raise ToxiproxyError(f"{what}: {reason}", reason=reason) from error
        if response.ok:
            return response.json() if response.content else None
        try:
            reason = str(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            reason = response.text.strip()
        raise _ERROR_OF_STATUS.get(response.status_code, ToxiproxyError)(
            f"{what}: {response.status_code} {reason}", status=response.status_code, reason=reason
        )


class ProxyHandle(Proxy):  # type: ignore[misc]  # has no types
    """One proxy; `listen`, `upstream` and `enabled` are as the server last told us."""

    def __init__(self, client: ToxiproxyClient, fields: JsonObject) -> None:
        super().__init__(**fields)
        self._client = client

    @property
    def address(self) -> tuple[str, int]:
        """Return where to connect to."""
        host, _, port = self.listen.rpartition(":")
        host = host.strip("[]")
        return ("127.0.0.1" if host in ("", "::", "0.0.0.0") else host, int(port))

    def refresh(self) -> None:
        """Ask the server how the proxy is now."""
        super().__init__(**self._client.call("GET", self._path()))

    @override
    def toxics(self) -> dict[str, Toxic]:
        """Return the toxics by name."""
        listed = self._client.call("GET", self._path("toxics"))
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
        fields: JsonObject = {
            "name": name or f"{type}_{stream}",
            "type": type,
            "stream": stream,
            "toxicity": _checked_toxicity(toxicity),
            "attributes": checked_attributes(type, attributes or {}, all_of_them=True),
        }
        _path(fields["name"])
        return Toxic(**self._client.call("POST", self._path("toxics"), fields))

    def update_toxic(
        self,
        name: str,
        *,
        attributes: Mapping[str, float] | None = None,
        toxicity: float | None = None,
    ) -> Toxic:
        """Change some attributes of a toxic, or its toxicity, and return it."""
        path = self._path("toxics", name)
        kind = self._client.call("GET", path)["type"]
        body: JsonObject = {
            "attributes": checked_attributes(kind, attributes or {}, all_of_them=False)
        }
        if toxicity is not None:
            body["toxicity"] = _checked_toxicity(toxicity)
        return Toxic(**self._client.call("PATCH", path, body))

    @override
    def destroy_toxic(self, toxic_name: str) -> bool:
        """Remove a toxic."""
        self._client.call("DELETE", self._path("toxics", toxic_name))
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

    def _path(self, *below: str) -> str:
        return _path("proxies", self.name, *below)

    def _set(self, body: JsonObject) -> None:
        super().__init__(**self._client.call("POST", self._path(), body))
        if self.enabled != body.get("enabled", self.enabled):
            state = "on" if self.enabled else "off"
            raise ToxiproxyError(f"proxy {self.name!r} at {self.listen} is still {state}")


def _path(*names: str) -> str:
    """Return a path; raise UsageError for a name that no path can hold."""
    for name in names:
        if not name or "/" in name or name in (".", ".."):
            raise UsageError(
                f"a proxy or toxic cannot be named {name!r}: no request could ever address it",
                hint="Use letters, digits, '.', '_' and '-'.",
            )
    return "".join(f"/{quote(name, safe='')}" for name in names)


def _checked_toxicity(toxicity: float) -> float:
    if not 0 <= toxicity <= 1:
        raise UsageError(f"toxicity is a share of connections between 0 and 1, not {toxicity!r}")
    return toxicity


def _what_the_system_said(error: BaseException) -> str:
    """Return the words of the system call below the layers of an HTTP library, else their own."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return str(error)
