"""The HTTP API of a Toxiproxy server: which request does what to the proxies, and the answer.

Paths, fields, status codes and the words of refusals are those of Shopify's server 2.12
(`docs/toxiproxy.md`). Nothing in here waits, so every request is answered before the next is
looked at, from whatever connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from elastic_harness.toxiproxy.address import AddressError
from elastic_harness.toxiproxy.proxy import Proxy
from elastic_harness.toxiproxy.stream import Direction, Toxic
from elastic_harness.toxiproxy.toxics import TOXIC_TYPES

__all__ = ["Answer", "Api", "ProxyMaker"]

# (name, listen, upstream) -> a proxy that is off
ProxyMaker = Callable[[str, str, str], Proxy]

# What a server says that was built without a version, as most packages of the real one are.
_VERSION = {"version": "git"}
_PROXY_FIELDS = {"name": str, "listen": str, "upstream": str, "enabled": bool}
_CHANGE_FIELDS = {"toxicity": float, "attributes": dict}
_TOXIC_FIELDS = {"name": str, "type": str, "stream": str, **_CHANGE_FIELDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status, and a body in JSON."""

    status: int = 200
    body: bytes = b""


class _Refused(Exception):
    """The request is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.fields = {"error": text, "status": status}


class Api:
    """The proxies of one server, by name, and what may be asked of them."""

    def __init__(self, make_proxy: ProxyMaker) -> None:
        self._make_proxy = make_proxy
        self._proxies: dict[str, Proxy] = {}

    def close(self) -> None:
        """Stop every proxy."""
        for proxy in self._proxies.values():
            proxy.stop()
        self._proxies.clear()

    def answer(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Do what a request asks for."""
        names = tuple(map(unquote, path.partition("?")[0].removeprefix("/").split("/")))
        try:
            return self._do("POST" if method == "PATCH" else method, names, body)
        except _Refused as refused:
            return _json(refused.fields, refused.status)

    def _do(self, method: str, names: tuple[str, ...], body: bytes) -> Answer:
        match method, *names:
            case "GET", "version":
                return _json(_VERSION)
            case "POST", "reset":
                return self._reset()
            case "POST", "populate":
                return self.populate(body)
            case "GET", "proxies":
                return _json({name: _shown(self._proxies[name]) for name in sorted(self._proxies)})
            case "POST", "proxies":
                return self._create_proxy(body)
            case "GET", "proxies", name:
                return _json(_shown(self._proxy(name)))
            case "POST", "proxies", name:
                return self._update_proxy(self._proxy(name), body)
            case "DELETE", "proxies", name:
                self._proxy(name).stop()
                del self._proxies[name]
                return Answer(status=204)
            case "GET", "proxies", name, "toxics":
                return _json([_toxic_fields(toxic) for toxic in self._proxy(name).toxics])
            case "POST", "proxies", name, "toxics":
                return self._create_toxic(self._proxy(name), body)
            case "GET", "proxies", name, "toxics", toxic:
                return _json(_toxic_fields(_toxic(self._proxy(name), toxic)))
            case "POST", "proxies", name, "toxics", toxic:
                return self._update_toxic(self._proxy(name), toxic, body)
            case "DELETE", "proxies", name, "toxics", toxic:
                proxy = self._proxy(name)
                proxy.remove_toxics([_toxic(proxy, toxic)])
                return Answer(status=204)
        raise _Refused(404, f"there is no {method} /{'/'.join(names)}")

    def populate(self, body: bytes) -> Answer:
        """Make the proxies of a list, as `POST /populate` does; looks at all of it first."""
        made: list[dict[str, object]] = []
        try:
            wanted = [_fields(item, _PROXY_FIELDS) for item in _decoded(body, list)]
            for number, fields in enumerate(wanted, 1):
                _require(fields, f" at proxy {number}")
            for fields in wanted:
                made.append(_shown(self._add_or_replace(fields)))  # noqa: PERF401 (kept on failure)
        except _Refused as refused:
            return _json({**refused.fields, "proxies": made or None}, refused.status)
        return _json({"proxies": made or None}, 201)

    def _create_proxy(self, body: bytes) -> Answer:
        wanted = _fields(_decoded(body, dict), _PROXY_FIELDS)
        _require(wanted)
        if wanted["name"] in self._proxies:
            raise _Refused(409, "proxy already exists")
        return _json(_shown(self._add_or_replace(wanted)), 201)

    def _add_or_replace(self, wanted: Mapping[str, Any]) -> Proxy:
        name, listen, upstream = wanted["name"], wanted.get("listen", ""), wanted["upstream"]
        existing = self._proxies.get(name)
        with _address_is_had():
            if existing is not None:
                if not existing.differs(listen=listen, upstream=upstream):
                    return existing
                existing.stop()
            proxy = self._make_proxy(name, listen, upstream)
            if wanted.get("enabled", True):
                proxy.start()
        self._proxies[name] = proxy
        return proxy

    def _update_proxy(self, proxy: Proxy, body: bytes) -> Answer:
        wanted = _fields(_decoded(body, dict), _PROXY_FIELDS)
        with _address_is_had():
            proxy.move(
                listen=wanted.get("listen", proxy.listen),
                upstream=wanted.get("upstream", proxy.upstream),
                enabled=wanted.get("enabled", proxy.is_enabled),
            )
        return _json(_shown(proxy))

    def _create_toxic(self, proxy: Proxy, body: bytes) -> Answer:
        wanted = _fields(_decoded(body, dict), _TOXIC_FIELDS)
        kind, stream = wanted.get("type", ""), wanted.get("stream", "downstream")
        if stream.lower() not in {way.value for way in Direction}:
            raise _Refused(400, "stream was invalid, can be either upstream or downstream")
        if kind not in TOXIC_TYPES:
            raise _Refused(400, "invalid toxic type")
        toxic = Toxic(
            name=wanted.get("name") or f"{kind}_{stream}",
            type=kind,
            stream=stream,
            toxicity=wanted.get("toxicity", 1.0),
            attributes=dict.fromkeys(TOXIC_TYPES[kind].attributes, 0) | _attributes(kind, wanted),
        )
        if proxy.find_toxic(toxic.name) is not None:
            raise _Refused(409, "toxic already exists")
        proxy.add_toxic(toxic)
        return _json(_toxic_fields(toxic))

    def _update_toxic(self, proxy: Proxy, name: str, body: bytes) -> Answer:
        toxic = _toxic(proxy, name)
        wanted = _fields(_decoded(body, dict), _CHANGE_FIELDS)
        attributes = _attributes(toxic.type, wanted)
        changed = toxic.changed(attributes, wanted.get("toxicity", toxic.toxicity))
        proxy.change_toxic(changed)
        return _json(_toxic_fields(changed))

    def _reset(self) -> Answer:
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
        return Answer(status=204)

    def _proxy(self, name: str) -> Proxy:
        proxy = self._proxies.get(name)
        if proxy is None:
            raise _Refused(404, "proxy not found")
        return proxy


def _decoded(body: bytes, kind: type) -> Any:  # noqa: ANN401 (JSON)
    """Return what a body says, or refuse it; null is an empty one."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"bad request body: {error}") from error
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise _Refused(400, f"bad request body: {_json_name(kind)} is expected")
    return value


def _fields(value: object, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the known fields of an object, without those that are null, or refuse it."""
    if not isinstance(value, dict):
        raise _Refused(400, "bad request body: an object is expected")
    known = {name: value[name] for name in kinds if value.get(name) is not None}
    for name, item in known.items():
        _check(name, item, kinds[name])
    return known


def _attributes(kind: str, wanted: Mapping[str, Any]) -> dict[str, int]:
    """Return the attributes that this type of toxic has, or refuse them."""
    return _fields(wanted.get("attributes", {}), dict.fromkeys(TOXIC_TYPES[kind].attributes, int))


def _check(name: str, value: object, kind: type) -> None:
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or isinstance(value, bool) is not (kind is bool):
        raise _Refused(400, f"bad request body: {name}: {_json_name(kind)} is expected")


def _json_name(kind: type) -> str:
    names = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(kind, "a list" if kind is list else "an object")


def _require(fields: Mapping[str, Any], where: str = "") -> None:
    for name in ("name", "upstream"):
        if not fields.get(name):
            raise _Refused(400, f"missing required field: {name}{where}")


@contextmanager
def _address_is_had() -> Iterator[None]:
    """Turn an address that cannot be had into the server's answer."""
    try:
        yield
    except AddressError as error:
        raise _Refused(500, str(error)) from error


def _json(value: object, status: int = 200) -> Answer:
    return Answer(status=status, body=json.dumps(value).encode() + b"\n")


def _toxic(proxy: Proxy, name: str) -> Toxic:
    toxic = proxy.find_toxic(name)
    if toxic is None:
        raise _Refused(404, "toxic not found")
    return toxic


def _shown(proxy: Proxy) -> dict[str, object]:
    return {
        "name": proxy.name,
        "listen": proxy.listen,
        "upstream": proxy.upstream,
        "enabled": proxy.is_enabled,
        "toxics": [_toxic_fields(toxic) for toxic in proxy.toxics],
    }


def _toxic_fields(toxic: Toxic) -> dict[str, object]:
    return {
        "attributes": dict(toxic.attributes),
        "name": toxic.name,
        "type": toxic.type,
        "stream": toxic.stream,
        "toxicity": toxic.toxicity,
    }
