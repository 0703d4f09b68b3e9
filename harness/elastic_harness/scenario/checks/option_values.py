"""What the options of launchers may be given, as far as that can be known before one starts.

Pure. Neither launcher's parser may be asked here (`option_checks` says why); a test gives the same
values to both parsers, ours and the installed torchrun's, and compares what they say.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping
from typing import Final

from pytest_elastic.config import parse_signals
from pytest_elastic.errors import UsageError

__all__ = ["why_no_value"]

_SIGNALS: Final = {each.name: int(each) for each in signal.Signals}
# Beyond any rank or port that is meant; both parsers read more.
_NUMBER: Final = re.compile(r"\d{1,9}")
_STREAMS: Final = (
    "0 (none), 1 (stdout), 2 (stderr) or 3 (both) is expected, or that by local rank, as in 0:1,1:3"
)


def why_no_value(option: str, text: str, *, is_torchrun: bool) -> str | None:
    """Say why a launcher would not take this value of a long option, or return None.

    `is_torchrun` asks for torchrun as it is installed, which reads a few of them otherwise.
    """
    look = (_OF_TORCHRUN if is_torchrun else _OF_OURS).get(option) or _OF_BOTH.get(option)
    expected = look(text) if look is not None else None
    return None if expected is None else f"{option}={text}: {expected}"


def _one_of(*words: str) -> Callable[[str], str | None]:
    return lambda text: None if text in words else f"one of {', '.join(words)} is expected"


def _seconds(text: str) -> str | None:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    return None if 0 <= number < math.inf else "a number of seconds is expected, 0 or more"


def _whole_seconds(text: str) -> str | None:
    return None if _NUMBER.fullmatch(text) else "a whole number of seconds is expected, 0 or more"


def _node_rank(text: str) -> str | None:
    return None if _NUMBER.fullmatch(text) else "a node's number is expected, 0 or more"


def _port(text: str) -> str | None:
    is_one = _NUMBER.fullmatch(text) is not None and int(text) <= 65535
    return None if is_one else "a port is expected, 0 to 65535"


def _streams(text: str) -> str | None:
    is_one = re.fullmatch(r"[0-3]|\d{1,9}:[0-3](,\d{1,9}:[0-3])*", text)
    return None if is_one else _STREAMS


def _streams_of_torchrun(text: str) -> str | None:
    """As torch's `Std.from_str`, which knows local ranks of one digit."""
    return None if re.fullmatch(r"[0-3]|(\d:[0-3],)*\d:[0-3]", text) else _STREAMS


def _ranks(text: str) -> str | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    is_list = all(_NUMBER.fullmatch(part) for part in parts)
    return None if is_list else "local ranks are expected, as in 0,1"


def _ranks_of_torchrun(text: str) -> str | None:
    is_list = all(_NUMBER.fullmatch(part.strip()) for part in text.split(","))
    return None if is_list or not text else "local ranks are expected, as in 0,1"


def _signals(text: str) -> str | None:
    try:
        parse_signals(text, _SIGNALS)
    except UsageError as error:
        return error.message.partition(": ")[2]
    return None


def _label(text: str) -> str | None:
    return None if text.isprintable() else "a name in one line is expected"


def _name(text: str) -> str | None:
    return _label(text) if text else "a name is expected"


_OF_BOTH: Final[Mapping[str, Callable[[str], str | None]]] = {
    # Ours takes others with a warning; torchrun ends with a KeyError.
    "--event-log-handler": _one_of("null", "console", "dynamic_rendezvous"),
    "--monitor-interval": _seconds,
    "--start-method": _one_of("spawn", "fork", "forkserver"),
    "--numa-binding": _one_of("node", "socket", "exclusive", "core-complex"),
    "--master-port": _port,
    "--node-rank": _node_rank,
}
_OF_OURS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "--failure-grace": _seconds,
    "--local-ranks-filter": _ranks,
    "--node-name": _name,
    "--redirects": _streams,
    "--role": _label,
    "--shutdown-timeout": _seconds,
    "--signals-to-handle": _signals,
    "--tee": _streams,
    "--worker-start": _one_of("auto", "exec"),
}
_OF_TORCHRUN: Final[Mapping[str, Callable[[str], str | None]]] = {
    "--local-ranks-filter": _ranks_of_torchrun,
    "--redirects": _streams_of_torchrun,
    "--shutdown-timeout": _whole_seconds,
    "--tee": _streams_of_torchrun,
}
