"""The HTTP API of a Toxiproxy server: which request does what to the proxies, and the answer.

Bodies, codes and odd cases are those of Shopify's server 2.12 (`docs/toxiproxy.md`). Nothing in
here waits, so every request is answered before the next is looked at, from whatever connection.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote, unquote

from elastic_harness.toxiproxy.address import AddressError
from elastic_harness.toxiproxy.fields import ProxyFields, ToxicFields
from elastic_harness.toxiproxy.go_json import (
    JsonProblem,
    Reading,
    as_float32,
    decode,
    encode,
)
from elastic_harness.toxiproxy.http_wire import Request, Response
from elastic_harness.toxiproxy.proxy import Proxy
from elastic_harness.toxiproxy.stream import Direction, Toxic
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES

__all__ = ["Api", "ProxyMaker"]

# (name, listen, upstream) -> a proxy that is off
ProxyMaker = Callable[[str, str, str], Proxy]
# Takes the body, and the names in the path.
_Handler = Callable[..., Response]

# What the real server says when it was built without a version.
_VERSION = b'{"version": "git"}\n'
_JSON = {"Content-Type": "application/json"}
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_STREAMS = tuple(way.value for way in Direction)


class _Refused(Exception):
    """The request is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

    @property
    def fields(self) -> dict[str, object]:
        return {"error": self.text, "status": self.status}


class Api:
    """The proxies of one server, by name, and what may be asked of them."""

    def __init__(self, make_proxy: ProxyMaker) -> None:
        self._make_proxy = make_proxy
        self._proxies: dict[str, Proxy] = {}
        self._request_numbers = itertools.count(1)
        name = "/([^/]+)"
        change_proxy, change_toxic = self._update_proxy, self._update_toxic
        routes: dict[str, dict[str, _Handler]] = {
            "/version": {"GET": self._version},
            "/reset": {"POST": self._reset},
            "/populate": {"POST": self.populate},
            "/proxies": {"GET": self._list_proxies, "POST": self._create_proxy},
            f"/proxies{name}": {
                "GET": self._show_proxy,
                "POST": change_proxy,
                "PATCH": change_proxy,
                "DELETE": self._delete_proxy,
            },
            f"/proxies{name}/toxics": {"GET": self._list_toxics, "POST": self._create_toxic},
            f"/proxies{name}/toxics{name}": {
                "GET": self._show_toxic,
                "POST": change_toxic,
                "PATCH": change_toxic,
                "DELETE": self._delete_toxic,
            },
        }
        self._routes = [(re.compile(pattern), handlers) for pattern, handlers in routes.items()]

    def close(self) -> None:
        """Stop every proxy."""
        for proxy in self._proxies.values():
            proxy.stop()
        self._proxies.clear()

    def populate(self, body: bytes) -> Response:
        """Make the proxies of a list, as `POST /populate` does."""
        made: list[Proxy] = []
        fields: dict[str, object] = {}
        status = 201
        try:
            for wanted in self._populate_fields(body):
                made.append(self._add_or_replace(wanted))  # noqa: PERF401 (kept when one fails)
        except _Refused as refused:
            status, fields = refused.status, refused.fields
        listed = [_proxy_fields(proxy) for proxy in made] or None
        return Response(status=status, body=encode({**fields, "proxies": listed}), headers=_JSON)

    def answer(self, request: Request) -> Response:
        """Do what a request asks for."""
        response = self._answer(request)
        return replace(response, body=b"") if request.method == "HEAD" else response

    def _answer(self, request: Request) -> Response:
        path, _, query = request.target.partition("?")
        path = unquote(path, errors="replace")
        clean = posixpath.normpath("/" + path.lstrip("/"))
        if path.endswith("/") and clean != "/":
            clean += "/"
        if clean != path:
            where = quote(clean) + (f"?{query}" if query else "")
            body = f'<a href="{where}">Moved Permanently</a>.\n\n'.encode()
            headers = {"Content-Type": "text/html; charset=utf-8", "Location": where}
            return Response(status=301, body=body, headers=headers)
        routed = self._route(request.method, clean)
        if routed is None:
            return Response(status=404, body=b"404 page not found\n", headers=_TEXT)
        handler, names = routed
        if handler is None:
            return Response(status=405)
        request_id = {"X-Toxiproxy-Request-Id": f"{next(self._request_numbers):020x}"}
        if request.headers.get("user-agent", "").startswith("Mozilla/"):
            body = b"User agent not allowed\n"
            return Response(status=403, body=body, headers={**_TEXT, **request_id})
        try:
            response = handler(request.body, *names)
        except _Refused as refused:
            body = encode(refused.fields) + b"\n"
            response = Response(status=refused.status, body=body, headers=_TEXT)
        return Response(
            status=response.status, body=response.body, headers={**response.headers, **request_id}
        )

    def _route(self, method: str, path: str) -> tuple[_Handler | None, tuple[str, ...]] | None:
        for pattern, handlers in self._routes:
            if match := pattern.fullmatch(path):
                return handlers.get(method), match.groups()
        return None

    # Requests

    def _version(self, body: bytes) -> Response:
        headers = {"Content-Type": "application/json;charset=utf-8"}
        return Response(status=200, body=_VERSION, headers=headers)

    def _list_proxies(self, body: bytes) -> Response:
        return _ok({name: _proxy_fields(self._proxies[name]) for name in sorted(self._proxies)})

    def _create_proxy(self, body: bytes) -> Response:
        wanted = ProxyFields()
        with _body_is_read() as reading:
            wanted.read(decode(body), reading)
        if not wanted.name or not wanted.upstream:
            missing = "upstream" if wanted.name else "name"
            raise _Refused(400, f"missing required field: {missing}")
        if wanted.name in self._proxies:
            raise _Refused(409, "proxy already exists")
        proxy = self._make_proxy(wanted.name, wanted.listen or "", wanted.upstream)
        if wanted.enabled is not False:
            with _address_is_had():
                proxy.start()
        self._proxies[wanted.name] = proxy
        return _ok(_proxy_fields(proxy), status=201)

    def _show_proxy(self, body: bytes, name: str) -> Response:
        return _ok(_proxy_fields(self._proxy(name)))

    def _update_proxy(self, body: bytes, name: str) -> Response:
        proxy = self._proxy(name)
        wanted = ProxyFields(listen=proxy.listen, upstream=proxy.upstream, enabled=proxy.is_enabled)
        with _body_is_read() as reading:
            wanted.read(decode(body), reading)
        with _address_is_had():
            proxy.move(
                listen=wanted.listen or "",
                upstream=wanted.upstream or "",
                enabled=bool(wanted.enabled),
            )
        return _ok(_proxy_fields(proxy))

    def _delete_proxy(self, body: bytes, name: str) -> Response:
        self._proxy(name).stop()
        del self._proxies[name]
        return Response(status=204)

    def _list_toxics(self, body: bytes, name: str) -> Response:
        return _ok([_toxic_fields(toxic) for toxic in self._proxy(name).toxics])

    def _create_toxic(self, body: bytes, name: str) -> Response:
        proxy = self._proxy(name)
        wanted = ToxicFields()
        with _body_is_read() as reading:
            wanted.read(decode(body), reading)
            for value in wanted.attributes:
                reading.fields(value, "toxics.NoopToxic", {})
        if wanted.stream.lower() not in _STREAMS:
            text = "stream was invalid, can be either upstream or downstream"
            raise _Refused(400, text)
        if wanted.type not in TOXIC_TYPES:
            raise _Refused(400, "invalid toxic type")
        toxic_name = wanted.name or f"{wanted.type}_{wanted.stream}"
        if proxy.find_toxic(toxic_name) is not None:
            raise _Refused(409, "toxic already exists")
        with _body_is_read() as reading:
            attributes = wanted.read_attributes(wanted.type, reading)
        toxic = Toxic(
            name=toxic_name,
            type=wanted.type,
            stream=wanted.stream,
            toxicity=1.0 if wanted.toxicity is None else wanted.toxicity,
            attributes=dict.fromkeys(TOXIC_TYPES[wanted.type].attributes, 0) | attributes,
        )
        proxy.add_toxic(toxic)
        return _ok(_toxic_fields(toxic))

    def _show_toxic(self, body: bytes, name: str, toxic_name: str) -> Response:
        return _ok(_toxic_fields(_toxic(self._proxy(name), toxic_name)))

    def _update_toxic(self, body: bytes, name: str, toxic_name: str) -> Response:
        proxy = self._proxy(name)
        toxic = _toxic(proxy, toxic_name)
        wanted = ToxicFields()
        attributes: dict[str, int] = {}
        try:
            with _body_is_read() as reading:
                readers: dict[str, Callable[[object], None]] = {
                    "attributes": wanted.attributes.append,
                    "toxicity": lambda item: setattr(
                        wanted, "toxicity", reading.float32(item, "toxicity")
                    ),
                }
                reading.fields(decode(body), "toxic", readers)
                attributes = wanted.read_attributes(toxic.type, reading)
        except _Refused:
            # The attributes that could be read count all the same; the toxicity does not.
            if wanted.attributes:
                proxy.change_toxic(toxic.changed(attributes, toxic.toxicity))
            raise
        toxicity = toxic.toxicity if wanted.toxicity is None else wanted.toxicity
        changed = toxic.changed(attributes, toxicity)
        proxy.change_toxic(changed)
        return _ok(_toxic_fields(changed))

    def _delete_toxic(self, body: bytes, name: str, toxic_name: str) -> Response:
        proxy = self._proxy(name)
        proxy.remove_toxics([_toxic(proxy, toxic_name)])
        return Response(status=204)

    def _reset(self, body: bytes) -> Response:
        """Reset every proxy, and then tell of the first that could not be enabled."""
        problems = []
        for proxy in self._proxies.values():
            proxy.remove_toxics(proxy.toxics)
            try:
                proxy.start()
            except AddressError as error:
                problems.append(str(error))
        if problems:
            raise _Refused(500, problems[0])
        return Response(status=204)

    # Parts of them

    def _proxy(self, name: str) -> Proxy:
        proxy = self._proxies.get(name)
        if proxy is None:
            raise _Refused(404, "proxy not found")
        return proxy

    def _populate_fields(self, body: bytes) -> list[ProxyFields]:
        """Return what is wanted, having looked at all of it."""
        with _body_is_read() as reading:
            items = reading.items(decode(body), "[]toxiproxy.Proxy")
            wanted = [ProxyFields() for _ in items]
            for fields, item in zip(wanted, items, strict=True):
                fields.read(item, reading)
        for number, fields in enumerate(wanted, 1):
            if not fields.name or not fields.upstream:
                missing = "upstream" if fields.name else "name"
                raise _Refused(400, f"missing required field: {missing} at proxy {number}")
        return wanted

    def _add_or_replace(self, wanted: ProxyFields) -> Proxy:
        assert wanted.name, "checked before"
        assert wanted.upstream, "checked before"
        existing = self._proxies.get(wanted.name)
        listen = wanted.listen or ""
        with _address_is_had():
            if existing is not None:
                if not existing.differs(listen=listen, upstream=wanted.upstream):
                    return existing
                existing.stop()
            proxy = self._make_proxy(wanted.name, listen, wanted.upstream)
            if wanted.enabled is not False:
                proxy.start()
        self._proxies[wanted.name] = proxy
        return proxy


@contextmanager
def _body_is_read() -> Iterator[Reading]:
    """Lend a reading, and refuse the request when the body was no good."""
    reading = Reading()
    try:
        yield reading
        reading.check()
    except JsonProblem as problem:
        raise _Refused(400, f"bad request body: {problem}") from problem


@contextmanager
def _address_is_had() -> Iterator[None]:
    """Turn an address that cannot be had into the server's answer."""
    try:
        yield
    except AddressError as error:
        raise _Refused(500, str(error)) from error


def _ok(value: object, *, status: int = 200) -> Response:
    return Response(status=status, body=encode(value), headers=_JSON)


def _toxic(proxy: Proxy, name: str) -> Toxic:
    toxic = proxy.find_toxic(name)
    if toxic is None:
        raise _Refused(404, "toxic not found")
    return toxic


def _proxy_fields(proxy: Proxy) -> dict[str, object]:
    return {
        "name": proxy.name,
        "listen": proxy.listen,
        "upstream": proxy.upstream,
        "enabled": proxy.is_enabled,
        "Logger": {},
        "toxics": [_toxic_fields(toxic) for toxic in proxy.toxics],
    }


def _toxic_fields(toxic: Toxic) -> dict[str, object]:
    return {
        "attributes": dict(toxic.attributes),
        "name": toxic.name,
        "type": toxic.type,
        "stream": toxic.stream,
        "toxicity": as_float32(toxic.toxicity),
    }
