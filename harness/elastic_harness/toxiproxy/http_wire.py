"""Just enough HTTP/1.1 for an API on a loop: requests out of bytes, answers into bytes.

By hand, because that is a hundred lines and the libraries that would do are one more dependency for
everyone; not `http.server`, because that one reads from a blocking file. Everything has a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

__all__ = ["BadRequest", "Request", "RequestReader", "Response"]

_MAX_HEAD_BYTES = 64 << 10
# A list of ten thousand proxies has 2 MB.
_MAX_BODY_BYTES = 16 << 20


class BadRequest(Exception):
    """What was sent is no request that can be answered; the connection ends with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Names of headers are in lower case; of several with one name the last counts."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    keeps_alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, date: str, keeps_alive: bool) -> bytes:
        """Return the bytes to be sent."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Date: {date}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.status != HTTPStatus.NO_CONTENT:
            lines.append(f"Content-Length: {len(self.body)}")
        if not keeps_alive:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + self.body


class RequestReader:
    """Put bytes in with `feed`; `next_request` takes a whole request out, or nothing yet."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def wants_continue(self) -> bool:
        """Tell whether the client has sent a head and waits for 100 before it sends the body."""
        head, end, body = self._bytes.partition(b"\r\n\r\n")
        return bool(end) and not body and b"\r\nexpect: 100-continue" in head.lower()

    def feed(self, data: bytes) -> None:
        """Put in what was received."""
        self._bytes += data

    def next_request(self) -> Request | None:
        """Return the next request, once all of it is there; raise BadRequest."""
        while self._bytes[:2] == b"\r\n":  # some clients end a body with a line of its own
            del self._bytes[:2]
        end = self._bytes.find(b"\r\n\r\n")
        if max(end, 0 if end >= 0 else len(self._bytes)) > _MAX_HEAD_BYTES:
            raise BadRequest(431, "Request Header Fields Too Large")
        if end < 0:
            return None
        first, *lines = self._bytes[:end].decode("latin-1").split("\r\n")
        method, target, version = _request_line(first)
        headers = dict(_header(line) for line in lines)
        body_end = end + 4
        if headers.get("transfer-encoding", "").lower() == "chunked":
            chunked = _chunked(self._bytes, body_end)
            if chunked is None:
                return None
            body, body_end = chunked
        elif "transfer-encoding" in headers:
            raise BadRequest(501, "Unsupported transfer encoding")
        else:
            size = _body_size(headers.get("content-length", "0"))
            if len(self._bytes) < body_end + size:
                return None
            body = bytes(self._bytes[body_end : body_end + size])
            body_end += size
        del self._bytes[:body_end]
        if version == "HTTP/1.1" and "host" not in headers:
            raise BadRequest(400, "400 Bad Request: missing required Host header")
        connection = headers.get("connection", "").lower()
        keeps_alive = "close" not in connection and version == "HTTP/1.1"
        return Request(
            method=method, target=target, headers=headers, body=body, keeps_alive=keeps_alive
        )


def _request_line(line: str) -> tuple[str, str, str]:
    words = line.split(" ")
    if len(words) != 3 or not words[0].isalpha() or not words[1]:
        raise BadRequest(400, "400 Bad Request")
    if words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(505, "505 HTTP Version Not Supported")
    return words[0], words[1], words[2]


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise BadRequest(400, "400 Bad Request")
    return name.lower(), value.strip()


def _body_size(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(400, "400 Bad Request")
    size = int(text[:20])
    if size > _MAX_BODY_BYTES:
        raise BadRequest(413, "Request Entity Too Large")
    return size


def _chunked(data: bytearray, start: int) -> tuple[bytes, int] | None:
    """Return a chunked body and where it ends, once all of it is there."""
    body = bytearray()
    while True:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            if len(data) - start > _MAX_HEAD_BYTES:
                raise BadRequest(400, "400 Bad Request")
            return None
        try:
            size = int(data[start:line_end].partition(b";")[0], 16)
        except ValueError:
            raise BadRequest(400, "400 Bad Request") from None
        if size < 0 or len(body) + size > _MAX_BODY_BYTES:
            raise BadRequest(413, "Request Entity Too Large")
        start = line_end + 2
        if size == 0:
            return _after_trailers(data, start, body)
        if len(data) < start + size + 2:
            return None
        body += data[start : start + size]
        start += size + 2


def _after_trailers(data: bytearray, start: int, body: bytearray) -> tuple[bytes, int] | None:
    """Pass over the lines after the last chunk, up to an empty one."""
    while (line_end := data.find(b"\r\n", start)) >= 0:
        if line_end == start:
            return bytes(body), line_end + 2
        start = line_end + 2
    if len(data) - start > _MAX_HEAD_BYTES:
        raise BadRequest(400, "400 Bad Request")
    return None
