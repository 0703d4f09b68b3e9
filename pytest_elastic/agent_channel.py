"""A channel between two agents of one job: plain, or signed if the job has a token (R15).

    callee ──► caller   {"challenge": C}                   as soon as it accepted
    caller ──► callee   {"nonce": N}                       as soon as it connected
    both ways           M<JSON>                            M signs direction, C, N, count, JSON
    both ways           {"unwelcome": "<why>"}             unsigned: what a person has to mend

C and N are fresh for each connection and the count is that of the message in its direction, so
that nothing can be played again: not in this connection, and not in another. Nothing is encrypted.
M has 64 hexadecimal digits and is checked before the JSON behind it is read: of a stranger's bytes
only "unwelcome" is ever parsed, at most 4 KiB of it. Where one side has a token and the other none,
or another one, both hear why in one sentence.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable

from pytest_elastic.channel import JsonObject, read_object, write_object
from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import FrameStream, Probation
from pytest_elastic.loop import Loop

__all__ = ["AgentChannel"]

_OPTION = "--rdzv-token-file"
_NEEDS_TOKEN = f"the nodes there sign what they say, and this node was given no token ({_OPTION})"
_HAS_NO_TOKEN = f"no token was given to the node there ({_OPTION}), and this one signs what it says"
_OTHER_TOKEN = f"what it said is not signed with the token of this job ({_OPTION})"
_UNSIGNED = f"what it said is not signed, and this job has a token ({_OPTION})"
# Who wanted to hang up and is not answered: how long its last words wait for the challenge.
_LAST_WORDS_S = 5.0
# What the other side says of us is shown to people.
_MAX_WHY = 500
_RANDOM_PART = re.compile(rb'\{"(nonce|challenge)":"([0-9a-f]{32})"\}')
_SIGNED = re.compile(rb"[0-9a-f]{64}\{")
_MAC_BYTES = 64
# A sentence of ours is far below this; nothing that is unsigned and longer is parsed.
_MAX_UNWELCOME_BYTES = 4096


class AgentChannel:
    """One end of a connection between agents, with the face of a `Channel` without descriptors.

    `is_caller` tells the side that dialled. `unwelcome` is why the other side, or we, will not
    talk: no trying again mends that.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        credentials: Credentials | None,
        is_caller: bool,
        on_message: Callable[[JsonObject], None],
        on_closed: Callable[[str], None],
        probation: Probation | None = None,
    ) -> None:
        self.unwelcome: str | None = None
        self._loop = loop
        self._credentials = credentials
        self._is_caller = is_caller
        self._on_message = on_message
        self._on_closed = on_closed
        self._challenge = "" if is_caller else secrets.token_hex(16)
        self._nonce = secrets.token_hex(16) if is_caller else ""
        self._waiting: list[bytes] = []
        self._sent = 0
        self._received = 0
        self._is_leaving = False
        self._is_over = False
        self._channel = FrameStream(
            loop,
            sock,
            on_frame=lambda body, _: self._on_frame(body),
            on_closed=self._end,
            probation=probation,
        )
        if credentials is not None:
            ours = {"nonce": self._nonce} if is_caller else {"challenge": self._challenge}
            self._send_unsigned(ours)

    @property
    def is_foreign(self) -> bool:
        """Tell whether the other side does not speak as the agents of this job do."""
        return self._channel.is_foreign or self.unwelcome is not None

    @property
    def is_closed(self) -> bool:
        """Tell whether the channel has ended, from either side."""
        return self._channel.is_closed

    @property
    def socket(self) -> socket.socket:
        """The socket below, for options and addresses; never read or write it."""
        return self._channel.socket

    def trust(self) -> None:
        """End the probation: the other side has identified itself."""
        self._channel.trust()

    def send(self, message: JsonObject) -> None:
        """Queue one message; see `Channel.send`."""
        self.send_written(write_object(message).encode())

    def send_written(self, body: bytes) -> None:
        """Queue a message that `write_object` has written already, as one that goes to many is."""
        if self._is_leaving:
            return
        if self._is_ready:
            self._send_now(body)
        else:
            self._waiting.append(body)

    def close(self) -> None:
        """End the channel at once; queued messages are lost. Harmless when it has ended."""
        self._is_over = True
        self._channel.close()

    def close_when_flushed(self) -> None:
        """End the channel as soon as everything queued has been handed to the kernel."""
        self._is_over = True
        if self._is_ready or not self._waiting:
            self._channel.close_when_flushed()
        else:
            self._is_leaving = True
            self._loop.call_at(self._loop.now() + _LAST_WORDS_S, self._channel.close)

    @property
    def _is_ready(self) -> bool:
        """Whether both have said their random part, or nothing is signed."""
        return self._credentials is None or bool(self._challenge and self._nonce)

    def _send_unsigned(self, message: JsonObject) -> None:
        self._channel.send_frame(write_object(message).encode())

    def _send_now(self, body: bytes) -> None:
        if self._credentials is not None:
            parts = self._signed_parts(body, self._sent, is_caller=self._is_caller)
            body = self._credentials.sign(*parts).encode() + body
            self._sent += 1
        self._channel.send_frame(body)

    def _signed_parts(self, body: bytes, count: int, *, is_caller: bool) -> tuple[str | bytes, ...]:
        direction = "caller" if is_caller else "callee"
        return (direction, self._challenge, self._nonce, str(count), body)

    def _on_frame(self, frame: bytes) -> None:
        if self._is_over and not self._is_leaving:
            return
        if self._credentials is None:
            self._on_plain(frame)
        elif frame.startswith(b"{"):
            self._on_unsigned(frame)
        else:
            self._on_signed(frame, self._credentials)

    def _on_plain(self, frame: bytes) -> None:
        if frame.startswith(b'{"challenge":'):
            self._refuse(_NEEDS_TOKEN)
        elif frame.startswith(b'{"nonce":') or _SIGNED.match(frame):
            self._turn_away(_HAS_NO_TOKEN, "it signs what it says, and we were given no token")
        elif (why := _why_unwelcome(frame)) is not None:
            self._refuse(why)
        else:
            self._take(frame)

    def _on_unsigned(self, frame: bytes) -> None:
        """Take a random part, or why this side is unwelcome; nothing else is said unsigned."""
        said = _RANDOM_PART.fullmatch(frame)
        if said is None and (why := _why_unwelcome(frame)) is not None:
            self._refuse(why)
            return
        key = b"challenge" if self._is_caller else b"nonce"
        if self._is_ready or said is None or said[1] != key:
            self._turn_away(_UNSIGNED, _UNSIGNED)
            return
        value = said[2].decode()
        if self._is_caller:
            self._challenge = value
        else:
            self._nonce = value
        for body in self._waiting:
            self._send_now(body)
        self._waiting.clear()
        if self._is_leaving:
            self._channel.close_when_flushed()

    def _on_signed(self, frame: bytes, credentials: Credentials) -> None:
        if not self._is_ready or not _SIGNED.match(frame):
            self._turn_away(_UNSIGNED, _UNSIGNED)
            return
        mac, body = frame[:_MAC_BYTES].decode(), frame[_MAC_BYTES:]
        parts = self._signed_parts(body, self._received, is_caller=not self._is_caller)
        if not credentials.has_signed(mac, *parts):
            self._turn_away(_OTHER_TOKEN, _OTHER_TOKEN)
            return
        self._received += 1
        self._take(body)

    def _take(self, body: bytes) -> None:
        message = read_object(body)
        if message is None:
            self._channel.reject()
        else:
            self._on_message(message)

    def _turn_away(self, why: str, reason: str) -> None:
        """Say why, for a person to mend it, and hang up."""
        self._send_unsigned({"unwelcome": why})
        self._channel.close_when_flushed()
        self._refuse(reason, is_closed=True)

    def _refuse(self, why: str, *, is_closed: bool = False) -> None:
        self.unwelcome = why
        if not is_closed:
            self._channel.close()
        self._end(why)

    def _end(self, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._on_closed(reason)


def _why_unwelcome(frame: bytes) -> str | None:
    """Return why the other side will not talk, if that is what a frame says."""
    if not frame.startswith(b'{"unwelcome":') or len(frame) > _MAX_UNWELCOME_BYTES:
        return None
    why = (read_object(frame) or {}).get("unwelcome")
    return why[:_MAX_WHY] if isinstance(why, str) else None
