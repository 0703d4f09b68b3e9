"""Files that no reader sees half of."""

from __future__ import annotations

import contextlib
import os
import secrets

__all__ = ["replace_file"]


def replace_file(path: str, content: str | bytes, *, mode: int | None = None) -> None:
    """Put a new file in the place of what has this name, at once; raises OSError.

    The temporary file has a random name, and is removed if writing fails.
    """
    unfinished = f"{path}.{secrets.token_hex(8)}.part"
    data = content.encode() if isinstance(content, str) else content
    try:
        # "x": never into what a stranger has put there.
        with open(unfinished, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
