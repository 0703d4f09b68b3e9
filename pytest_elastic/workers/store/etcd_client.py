"""What a job needs of etcd's API of version 3: the leader, its lease, the decided record.

Everything here blocks, and is called on threads of the store service only. It speaks to the JSON
gateway that every etcd since 3.4 serves, with the standard library: five calls need no client of
their own, and the ones that exist bring gRPC or wait in ways of theirs. Nothing is watched: a watch
that has died looks like a key that does not change.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any

from pytest_elastic.errors import StoreUnreachable

__all__ = ["Etcd", "campaign", "conclude", "record", "renew", "resign"]


# Which of several endpoints answered last: it is asked first.
_answered: dict[tuple[str, ...], str] = {}


class Etcd:
    """One etcd, of one or several endpoints; a connection for each request.

    `place` holds `endpoints` (HOST:PORT), `protocol` (http or https), and optionally `ca_cert`,
    `ssl_cert`, `ssl_cert_key` (paths), `user` and `password`. All calls together have `timeout_s`.
    Raises StoreUnreachable.
    """

    def __init__(self, place: Mapping[str, Any], *, timeout_s: float) -> None:
        self._place = place
        self._deadline = time.monotonic() + timeout_s
        self._token: str | None = None

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to one request, of the first endpoint that gives one in its time."""
        if self._place.get("user") and self._token is None:
            who = {"name": self._place["user"], "password": self._place.get("password", "")}
            self._token = str(self._ask("/v3/auth/authenticate", who)["token"])
        return self._ask(path, body)

    def _ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask one endpoint after the other; one that is silent leaves the others their share."""
        problems = []
        endpoints = tuple(self._place["endpoints"])
        order = sorted(endpoints, key=lambda each: each != _answered.get(endpoints))
        for position, endpoint in enumerate(order):
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                problems.append("no time is left")
                break
            try:
                answer = self._ask_one(endpoint, path, body, left_s / (len(order) - position))
            except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
                problems.append(f"{endpoint}: {_text(error)}")
            else:
                _answered[endpoints] = endpoint
                return answer
        raise StoreUnreachable(f"etcd does not answer ({'; '.join(problems)})")

    def _ask_one(
        self, endpoint: str, path: str, body: Mapping[str, Any], timeout_s: float
    ) -> Mapping[str, Any]:
        connection = self._connect(endpoint, timeout_s)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            if self._token is not None:
                headers["Authorization"] = self._token
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            # A stream of answers is one line each; of what is asked here, there is one.
            text = response.readline() if "keepalive" in path else response.read()
            answer = json.loads(text)
        if not isinstance(answer, dict):
            raise TypeError(f"it is not an etcd: it answered {text[:80]!r}")
        if response.status != http.client.OK:
            # A member without a leader answers so too: the next endpoint may be better off.
            raise ValueError(f"{answer.get('error') or answer.get('message') or response.status}")
        return answer

    def _connect(self, endpoint: str, timeout_s: float) -> http.client.HTTPConnection:
        place = self._place
        host, _, port = endpoint.rpartition(":")
        host = host.strip("[]")
        if place.get("protocol") != "https":
            return http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        context = ssl.create_default_context(cafile=place.get("ca_cert") or None)
        if place.get("ssl_cert"):
            context.load_cert_chain(place["ssl_cert"], place.get("ssl_cert_key") or None)
        return http.client.HTTPSConnection(host, int(port), timeout=timeout_s, context=context)


def campaign(etcd: Etcd, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the leader, or become it if there is none.

    `key` and `value` (JSON text with the candidate's `incarnation`), `record_key`, `end_key`,
    `ttl_s`. Returns `is_won`, the `value` that stands, its `create_revision`, the `ending` of the
    last job (empty: none, or too long ago), and if the key is ours the `lease`, its `ttl_s` and the
    `record` of the last committed round (empty: none). Raises StoreUnreachable.
    """
    found = _campaign(etcd, arguments)
    # Looked for last: an earlier holder of the key has written it by then, or never will.
    found["ending"] = _text_at(etcd, arguments["end_key"])
    return found


def _campaign(etcd: Etcd, arguments: Mapping[str, Any]) -> dict[str, Any]:
    key, ours = arguments["key"], arguments["value"]
    found = _first(etcd.ask("/v3/kv/range", {"key": _encode(key)}))
    if found is not None and _incarnation(found["value"]) != _incarnation(ours):
        return {"is_won": False, **found}
    if found is not None:
        # We won before, and did not hear of it; or we resign, and this came before that. What is
        # still under way belongs to that lease, and must not end the one that we ask for here.
        resign(etcd, found)
    granted = etcd.ask("/v3/lease/grant", {"TTL": str(arguments["ttl_s"])})
    lease = str(granted["ID"])
    answer = etcd.ask("/v3/kv/txn", _put_over({**arguments, "lease": lease}, 0))
    if answer.get("succeeded"):
        return {
            "is_won": True,
            "value": ours,
            "create_revision": int(answer["header"]["revision"]),
            "lease": lease,
            "ttl_s": int(granted["TTL"]),
            "record": _text_at(etcd, arguments["record_key"]),
        }
    etcd.ask("/v3/lease/revoke", {"ID": lease})
    found = _first(answer["responses"][0]["response_range"])
    if found is None:
        raise StoreUnreachable("etcd named a leader, and forgot it")
    return {"is_won": False, **found}


def renew(etcd: Etcd, arguments: Mapping[str, Any]) -> int:
    """Keep the lease; return its seconds from now on, 0 if the key is not ours any more.

    A key that another node of ours holds is never overwritten; foreign values are replaced.
    """
    found = _first(etcd.ask("/v3/kv/range", {"key": _encode(arguments["key"])}))
    if found is None or found["create_revision"] != arguments["create_revision"]:
        return 0
    if (found["value"], found["lease"]) != (arguments["value"], arguments["lease"]):
        answer = etcd.ask("/v3/kv/txn", _put_over(arguments, arguments["create_revision"]))
        if not answer.get("succeeded"):
            return 0
    answer = etcd.ask("/v3/lease/keepalive", {"ID": arguments["lease"]})
    return int(answer["result"].get("TTL", 0))


def record(etcd: Etcd, arguments: Mapping[str, Any]) -> bool:
    """Write `record` down if the key is still ours, and tell whether it was."""
    answer = etcd.ask(
        "/v3/kv/txn",
        {
            "compare": [_created(arguments["key"], arguments["create_revision"])],
            "success": [
                {
                    "requestPut": {
                        "key": _encode(arguments["record_key"]),
                        "value": _encode(arguments["record"]),
                    }
                }
            ],
        },
    )
    return bool(answer.get("succeeded"))


def conclude(etcd: Etcd, arguments: Mapping[str, Any]) -> bool:
    """Write `ending` down in the place of the last round if the key is still ours; tell whether.

    It stands for `end_ttl_s`, whatever becomes of the key.
    """
    lease = str(etcd.ask("/v3/lease/grant", {"TTL": str(arguments["end_ttl_s"])})["ID"])
    put = {"key": _encode(arguments["end_key"]), "value": _encode(arguments["ending"])}
    answer = etcd.ask(
        "/v3/kv/txn",
        {
            "compare": [_created(arguments["key"], arguments["create_revision"])],
            "success": [
                {"requestPut": {**put, "lease": lease}},
                {"requestDeleteRange": {"key": _encode(arguments["record_key"])}},
            ],
        },
    )
    if not answer.get("succeeded"):
        etcd.ask("/v3/lease/revoke", {"ID": lease})
        return False
    return True


def resign(etcd: Etcd, arguments: Mapping[str, Any]) -> None:
    """Give the lease back, and the key with it."""
    etcd.ask("/v3/lease/revoke", {"ID": arguments["lease"]})


def _text_at(etcd: Etcd, key: str) -> str:
    found = _first(etcd.ask("/v3/kv/range", {"key": _encode(key)}))
    return str(found["value"]) if found is not None else ""


def _created(key: str, revision: int) -> Mapping[str, str]:
    return {
        "key": _encode(key),
        "target": "CREATE",
        "result": "EQUAL",
        "createRevision": str(revision),
    }


def _put_over(arguments: Mapping[str, Any], create_revision: int) -> Mapping[str, Any]:
    """Return the transaction that writes our value over the key of a revision (0: over none)."""
    key, value = _encode(arguments["key"]), _encode(arguments["value"])
    return {
        "compare": [_created(arguments["key"], create_revision)],
        "success": [{"requestPut": {"key": key, "value": value, "lease": arguments["lease"]}}],
        "failure": [{"requestRange": {"key": key}}],
    }


def _first(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    kvs = answer.get("kvs")
    if not kvs:
        return None
    value = base64.b64decode(kvs[0].get("value", "")).decode(errors="replace")
    return {
        "value": value,
        "create_revision": int(kvs[0]["create_revision"]),
        "lease": str(kvs[0].get("lease", 0)),
    }


def _incarnation(value: str) -> str:
    try:
        return str(json.loads(value)["incarnation"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
