"""The token that the nodes of one job share, so that no other can speak for them (R15).

The token is any text of at least 16 bytes in a file that only its owner, or a group, can read. It
never travels: from it and the job's name comes a key, and with the key what is said is signed.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
from dataclasses import dataclass, field

from pytest_elastic.errors import UsageError

__all__ = ["Credentials", "read_token_file"]

# Below this a token can be guessed by trying; the recipe in the hint makes one of 64.
MIN_TOKEN_BYTES = 16
_MAX_TOKEN_BYTES = 64 * 1024
_RECIPE = "Make one with: (umask 077; openssl rand -hex 32 > FILE), the same on every node."


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key of one job (32 bytes); signatures are HMAC-SHA256 in hexadecimal digits."""

    key: bytes = field(repr=False)

    @classmethod
    def of_job(cls, token: bytes, run_id: str) -> Credentials:
        """Return the key of one job: what is signed for another job is worth nothing here."""
        return cls(hmac.digest(token, b"pytest-elastic run\0" + run_id.encode(), hashlib.sha256))

    def sign(self, *parts: str | bytes) -> str:
        """Return the signature of some texts in this order; none but the last may hold a NUL."""
        said = b"\0".join(
            part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
            for part in parts
        )
        return hmac.new(self.key, said, hashlib.sha256).hexdigest()

    def has_signed(self, signature: object, *parts: str | bytes) -> bool:
        """Tell whether a signature, which may be anything, is that of these texts."""
        if not isinstance(signature, str) or not signature.isascii():
            return False
        return hmac.compare_digest(signature, self.sign(*parts))


def read_token_file(path: str, *, said: str) -> bytes:
    """Return the token in a file, without space around it; `said` is the option that named it.

    Raises UsageError if it cannot be read, is no plain file or too short, or all can read it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None)
        hint = _RECIPE if code == errno.ENOENT else None
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{said}={path}: {why}", hint=hint) from error
    try:
        mode = os.fstat(fd).st_mode
        token = os.read(fd, _MAX_TOKEN_BYTES + 1).strip() if stat.S_ISREG(mode) else b""
    finally:
        os.close(fd)
    if not stat.S_ISREG(mode):
        raise UsageError(f"{said}={path} is no plain file: expected one that holds a token")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(
            f"{said}={path} can be read or written by every user of this machine "
            f"(mode {stat.S_IMODE(mode):04o}): expected 0600 or 0640",
            hint=f"chmod 600 {path}  (a Kubernetes secret: defaultMode: 0400)",
        )
    if len(token) > _MAX_TOKEN_BYTES:
        raise UsageError(f"{said}={path} is larger than {_MAX_TOKEN_BYTES} bytes: this is no token")
    if not token:
        raise UsageError(f"{said}={path} is empty: expected a token", hint=_RECIPE)
    if len(token) < MIN_TOKEN_BYTES:
        raise UsageError(
            f"{said}={path} holds {len(token)} bytes: a token has at least {MIN_TOKEN_BYTES}",
            hint=_RECIPE,
        )
    return token
