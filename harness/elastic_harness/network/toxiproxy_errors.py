"""What may come of asking a Toxiproxy server: the exceptions of `toxiproxy-python`, and ours."""

from __future__ import annotations

from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from pytest_elastic.errors import ElasticError

__all__ = [
    "ERROR_OF_STATUS",
    "ToxiproxyConflict",
    "ToxiproxyError",
    "ToxiproxyInvalid",
    "ToxiproxyMissing",
    "ToxiproxyStuck",
]


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


ERROR_OF_STATUS = {
    400: ToxiproxyInvalid,
    404: ToxiproxyMissing,
    409: ToxiproxyConflict,
    503: ToxiproxyStuck,
}
