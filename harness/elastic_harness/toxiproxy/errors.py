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
    "what_the_system_said",
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


def what_the_system_said(error: BaseException) -> str:
    """Return the words of the system call below the layers of an HTTP library, else their own."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return str(error)
