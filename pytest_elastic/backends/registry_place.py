"""Where the key is that names a job's leader: in which etcd or file, under which names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_elastic.backends.names import etcd_endpoints
from pytest_elastic.errors import UsageError

__all__ = ["RegistryCalls", "Where", "where_in_etcd", "where_in_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the key is: which `kind` of calls, what they need to get there, and how to say it."""

    kind: str
    arguments: Mapping[str, Any]
    name: str


class RegistryCalls(Protocol):
    """Calls of `etcd_client` and `registry_file` in `workers.store`, made where they may block."""

    def ask_registry(
        self,
        kind: str,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        """Call back with (value, error) within the time given."""


def where_in_etcd(endpoints: str, conf: Mapping[str, str], run_id: str) -> Where:
    """Return which keys of an etcd a job uses; raises UsageError."""
    place = _etcd_place(endpoints, conf)
    prefix = f"/pytest-elastic/{run_id}"
    keys = {
        "key": f"{prefix}/coordinator",
        "record_key": f"{prefix}/round",
        "end_key": f"{prefix}/end",
    }
    name = f"etcd at {', '.join(place['endpoints'])}"
    return Where(kind="etcd", arguments={"etcd": place, **keys}, name=name)


def where_in_file(path: str, run_id: str) -> Where:
    """Return which entry of a file a job uses."""
    return Where(kind="file", arguments={"path": path, "run_id": run_id}, name=path)


def _etcd_place(endpoints: str, conf: Mapping[str, str]) -> dict[str, Any]:
    """Return how to get to etcd, as `workers.store.etcd_client` reads it; raises UsageError."""
    place: dict[str, Any] = {**conf, "endpoints": [str(each) for each in etcd_endpoints(endpoints)]}
    if place.setdefault("protocol", "http") not in ("http", "https"):
        raise UsageError(f"--rdzv-conf protocol={place['protocol']}: expected http or https")
    if "password_file" in place and "user" not in place:
        raise UsageError("--rdzv-conf password_file without user: whose password is it?")
    try:
        for key in ("ca_cert", "ssl_cert", "ssl_cert_key"):
            if key in place:
                with open(place[key], "rb"):
                    pass
        if "password_file" in place:
            with open(place.pop("password_file"), encoding="utf-8") as file:
                place["password"] = file.read().strip()
    except OSError as error:
        raise UsageError(f"--rdzv-conf: cannot read {error.filename}: {error.strerror}") from error
    if place["protocol"] == "https":
        _check_certificates(place)
    return place


def _check_certificates(place: Mapping[str, Any]) -> None:
    """Raise UsageError for files that hold no certificates; etcd itself is not asked."""
    import ssl  # most launches need none

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if "ca_cert" in place:
        try:
            context.load_verify_locations(place["ca_cert"])
        except ssl.SSLError as error:
            raise UsageError(
                f"--rdzv-conf ca_cert={place['ca_cert']} holds no certificate ({error.reason})"
            ) from error
    if "ssl_cert" in place:
        key = place.get("ssl_cert_key")
        try:
            context.load_cert_chain(place["ssl_cert"], key, password="")  # never prompt
        except ssl.SSLError as error:
            raise UsageError(
                f"--rdzv-conf ssl_cert={place['ssl_cert']} with ssl_cert_key={key or 'itself'} are "
                f"no certificate and its key ({error.reason})"
            ) from error
