"""What `--rdzv-conf` may say: our settings, torchrun's, and those of etcd, from text to values.

Pure, as `config` is: text in, checked values out, or a `UsageError` that says what was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_elastic.errors import UsageError
from pytest_elastic.port_range import PortRange

__all__ = ["FROM_LEASE", "RendezvousConf", "parse_backend_conf", "parse_rdzv_conf", "store_type_of"]

# A launcher listens on a port of its own. A worker store is closed once the round after it has
# ended, which is when the store of the next one is opened: for a moment there are three.
_MIN_PORTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConf:
    """What `--rdzv-conf` may say; durations in seconds (see `rendezvous.settings.Settings`).

    The lease, the join timeout and the last call are a user's to think about. What else has to do
    with time follows from the lease (`FROM_LEASE`), unless it is given.
    """

    beat_interval_s: float = 1.0
    lease_s: float = 5.0
    drift_s: float = 0.5
    last_call_s: float = 30.0
    join_timeout_s: float = 600.0
    min_round_s: float = 5.0
    newcomer_window_s: float = 1.0
    linger_s: float = 5.0
    store_timeout_s: float = 1.0
    kill_timeout_s: float = 60.0
    is_host: bool | None = None
    quorum: str = "auto"
    store_type: str = "tcp"
    port_range: PortRange | None = None


# What follows from a lease that is given, where it is not given itself. A lease of 5 s has the
# defaults above. With a longer one less is sent, and slow nodes are waited for longer.
FROM_LEASE: Mapping[str, Callable[[float], float]] = {
    "beat_interval_s": lambda lease_s: lease_s / 5,
    "drift_s": lambda lease_s: max(lease_s / 10, 0.25),
    "min_round_s": lambda lease_s: min(lease_s, 5.0),
    "newcomer_window_s": lambda lease_s: min(lease_s / 5, 1.0),
    "linger_s": lambda lease_s: max(lease_s, 5.0),
    "store_timeout_s": lambda lease_s: max(lease_s / 5, 1.0),
}

_LEAST_LEASE_S = 0.2

# Our names and torchrun's, each with the field it sets. A value of None: accepted for the sake of
# commands that work today, and without effect, for the reason given.
_CONF_FIELDS: dict[str, str | None] = {
    "beat_interval": "beat_interval_s",
    "lease": "lease_s",
    "drift": "drift_s",
    "last_call_timeout": "last_call_s",
    "join_timeout": "join_timeout_s",
    "min_round": "min_round_s",
    "newcomer_window": "newcomer_window_s",
    "linger": "linger_s",
    "store_timeout": "store_timeout_s",
    "kill_timeout": "kill_timeout_s",
    "read_timeout": None,  # a store is asked from a process that is not waited for
    "is_host": "is_host",
    "quorum": "quorum",
    "keep_alive_interval": "beat_interval_s",
    "keep_alive_max_attempt": None,  # read below: the lease is so many beats
    "close_timeout": None,  # closing is acknowledged here, never waited out
    "heartbeat_timeout": None,  # beats have no thread that could hang
    "timeout": None,  # torchrun's c10d ignores it as well
    "rank": None,  # torchrun overwrites it with --node-rank
    "store_type": "store_type",
    "port_range": "port_range",
}
# Settings of torchrun's etcd backends.
_ETCD_SETTINGS = (
    *("protocol", "etcd_prefix", "cert", "key", "cacert"),
    *("ssl_cert", "ssl_cert_key", "ca_cert"),
)

_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")


def parse_rdzv_conf(
    text: str, *, backend: str = "c10d", on_unknown: Callable[[str], None] | None = None
) -> RendezvousConf:
    """Return the settings of a "key=value,key=value" text.

    A key that is not known is told to `on_unknown`, in a sentence, and has no effect, as torchrun
    does it; without `on_unknown` it is refused (UsageError), as any value that is wrong.
    """
    values: dict[str, str] = {}
    for key, value in conf_items(text):
        if key in _ETCD_SETTINGS:
            raise UsageError(
                f"--rdzv-conf {key} is a setting of torch's etcd backends; here it is {backend}"
            )
        if key not in _CONF_FIELDS:
            known = sorted({*_CONF_FIELDS, *(_ETCD_V3_SETTINGS if backend == "etcd-v3" else ())})
            close = difflib.get_close_matches(key, known, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            if on_unknown is None:
                raise UsageError(
                    f"--rdzv-conf has no setting {key!r}; known are {', '.join(known)}." + guess
                )
            on_unknown(f"--rdzv-conf has no setting {key!r}: it has no effect." + guess)
            continue
        values[key] = value
    fields: dict[str, float | bool | str | PortRange] = {}
    for key, value in values.items():
        name = _CONF_FIELDS[key]
        if name is not None:
            fields[name] = _conf_value(key, name, value)
        elif key == "keep_alive_max_attempt":
            _conf_number(key, value)
    if "lease" not in values and (
        "keep_alive_interval" in values or "keep_alive_max_attempt" in values
    ):
        attempts = _conf_number("keep_alive_max_attempt", values.get("keep_alive_max_attempt", "3"))
        interval = fields.get("beat_interval_s", 5.0)
        assert isinstance(interval, float), "intervals are parsed as numbers"
        fields.setdefault("beat_interval_s", interval)
        fields["lease_s"] = interval * max(attempts, 2.0)
    lease_s = fields.get("lease_s")
    if isinstance(lease_s, float):
        if lease_s < _LEAST_LEASE_S:
            raise UsageError(
                f"--rdzv-conf lease={lease_s:g}: expected {_LEAST_LEASE_S:g} seconds at least; "
                "a node that is silent for so long is given up, and machines are busy for moments"
            )
        fields = {name: follows(lease_s) for name, follows in FROM_LEASE.items()} | fields
    return RendezvousConf(**fields)  # type: ignore[arg-type]  # names and types come from the table


# What torch's own handlers over etcd read, besides what `torchrun` gives every handler.
_HANDLER_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "etcd": ("timeout", "last_call_timeout", "etcd_prefix", "protocol", "cert", "key", "cacert"),
    "etcd-v2": (
        *("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "timeout"),
        *("keep_alive_interval", "keep_alive_max_attempt", "read_timeout"),
        *("protocol", "ssl_cert", "ssl_cert_key", "ca_cert"),
    ),
}
# How our own rendezvous over etcd gets to it.
_ETCD_V3_SETTINGS = ("protocol", "ca_cert", "ssl_cert", "ssl_cert_key", "user", "password_file")
# torchrun's own default of `timeout`, which it gives every handler.
_HANDLER_TIMEOUT_S = "900"


def parse_backend_conf(
    text: str, backend: str, *, on_unknown: Callable[[str], None]
) -> tuple[RendezvousConf, Mapping[str, str]]:
    """Return what `--rdzv-conf` says to us, and what to a handler that is not ours.

    Of handlers, only torch's own settings are known by name. `on_unknown` is told of keys of ours
    that are not known.
    """
    values = dict(conf_items(text))
    if backend in ("c10d", "static"):
        conf = parse_rdzv_conf(text, on_unknown=on_unknown)
        if backend == "c10d" and conf.store_type == "file":
            _refuse_quorum(values, "store_type=file: the file names the leader")
        return conf, {}
    if backend == "etcd-v3":
        theirs = {key: value for key, value in values.items() if key in _ETCD_V3_SETTINGS}
        ours = ",".join(f"{key}={value}" for key, value in values.items() if key not in theirs)
        for key in ("is_host", "store_type"):
            if key in values:
                raise UsageError(
                    f"--rdzv-conf {key} is a setting of c10d; with etcd-v3 no node hosts anything"
                )
        _refuse_quorum(values, "etcd-v3: etcd names the leader")
        conf = parse_rdzv_conf(ours, backend=backend, on_unknown=on_unknown)
        return replace(conf, quorum="granted"), theirs
    known = _HANDLER_SETTINGS.get(backend)
    for key in values:
        if known is not None and key not in known:
            raise UsageError(
                f"--rdzv-conf has no setting {key!r} with the backend {backend}; known are "
                f"{', '.join(sorted(known))}"
            )
    return RendezvousConf(), {"timeout": _HANDLER_TIMEOUT_S, **values}


def store_type_of(text: str) -> str:
    """Return how `--rdzv-conf` says that nodes find each other: "tcp" or "file"."""
    return dict(conf_items(text)).get("store_type", "tcp").lower()


def _refuse_quorum(values: Mapping[str, str], why: str) -> None:
    if "quorum" in values:
        raise UsageError(f"--rdzv-conf quorum={values['quorum']} has no effect with {why}")


def conf_items(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a "key=value,key=value" text; raises UsageError for what is none."""
    # Quotes that a shell did not take away, because they were quoted themselves.
    for item in filter(None, (part.strip() for part in text.strip().strip("\"'").split(","))):
        key, separator, value = (part.strip() for part in item.partition("="))
        if not separator or not key or not value:
            raise UsageError(
                f"--rdzv-conf={text!r}: {item!r} is not a setting; expected key=value,key=value"
            )
        yield key, value


def _conf_value(key: str, name: str, value: str) -> float | bool | str | PortRange:
    if name == "port_range":
        return _port_range(value)
    if name == "quorum":
        if value not in ("auto", "coordinator", "majority"):
            raise UsageError(
                f"--rdzv-conf quorum={value}: expected majority (a majority of nodes goes on "
                "without any other), coordinator (the job ends with its host's node), or auto"
            )
        return value
    if name == "store_type":
        if value.lower() not in ("tcp", "file"):
            raise UsageError(
                f"--rdzv-conf store_type={value}: expected tcp (nodes meet at a port of one of "
                "them) or file (in a file that all of them see, which --rdzv-endpoint names)"
            )
        return value.lower()
    if name == "is_host":
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise UsageError(f"--rdzv-conf is_host={value}: expected true or false")
    return _conf_number(key, value)


def _port_range(value: str) -> PortRange:
    said = f"--rdzv-conf port_range={value}"
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", value)
    if match is None:
        raise UsageError(f"{said}: expected the first and the last port, as in 30000-30100")
    found = PortRange(first=int(match[1]), last=int(match[2]))
    if found.first < 1 or found.last > 65535:
        raise UsageError(f"{said}: ports are numbers from 1 to 65535")
    if found.last < found.first:
        raise UsageError(f"{said}: the first port is above the last one")
    if (count := found.last - found.first + 1) < _MIN_PORTS:
        raise UsageError(
            f"{said}: expected at least {_MIN_PORTS} ports for each launcher on this machine, "
            f"and this is {count}: one for the launcher, the others for worker stores"
        )
    return found


def _conf_number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        unit = "beats" if key == "keep_alive_max_attempt" else "seconds"
        raise UsageError(f"--rdzv-conf {key}={value}: expected a number of {unit} above 0")
    return number
