"""One frozen value holds every setting of a launch, and where each one came from.

There is one door: command line over environment (`PET_*`, as torchrun) over default. It is passed
once, in `cli.options`; below it nobody reads the environment, and each part receives its slice.
The functions here are pure: text in, checked values out, or a `UsageError` that says what was
expected.
"""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_elastic.errors import UsageError

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_PRELOAD",
    "Endpoint",
    "LaunchConfig",
    "ProgramConfig",
    "RendezvousConf",
    "fill_in",
    "parse_backend_conf",
    "parse_endpoint",
    "parse_endpoints",
    "parse_filters",
    "parse_nnodes",
    "parse_rdzv_conf",
    "parse_signals",
    "store_type_of",
]

# torchrun's default port of a c10d endpoint.
DEFAULT_PORT = 29400

# What a warm interpreter imports. Making the first optimizer imports torch._dynamo (830 modules, as
# long as torch itself), which every worker of every round would otherwise do again.
DEFAULT_PRELOAD = ("torch", "torch._dynamo")

# torchrun's default of --shutdown-timeout.
DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where nodes meet. Port 0 means any free one, which only a single-node job can use."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """What the workers run.

    `kind` is "script" (a file for the interpreter), "module" (`-m`), "binary" (`--no-python`), or
    "run_path" (`--run-path`: run the file in the interpreter as `runpy.run_path` would).
    """

    kind: str
    target: str
    args: Sequence[str] = ()
    python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConf:
    """What `--rdzv-conf` may say; durations in seconds (see `rendezvous.model.Settings`)."""

    beat_interval_s: float = 1.0
    lease_s: float = 5.0
    drift_s: float = 0.5
    last_call_s: float = 30.0
    join_timeout_s: float = 600.0
    min_round_s: float = 5.0
    newcomer_window_s: float = 1.0
    linger_s: float = 5.0
    store_timeout_s: float = 1.0
    is_host: bool | None = None
    quorum: str = "auto"
    store_type: str = "tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """Everything one node needs to take part in a job.

    `origins` says for each option where its value came from: "command line", "environment PET_…"
    or "default". `node_name` is None unless the user named the node. `error_file` is where whoever
    started this agent looks for the reason of a failure. `handler_endpoint` and `handler_conf` are
    what the user said to a backend that is torch's or somebody else's, as text. `registry_file` is
    the file in which nodes find each other, if it is not the endpoint's store.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    backend: str
    endpoints: Sequence[Endpoint]
    rendezvous: RendezvousConf
    max_restarts: int
    role: str
    program: ProgramConfig
    local_addr: str | None = None
    node_rank: int | None = None
    node_name: str | None = None
    rdzv_token_file: str | None = None
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: Sequence[int] = ()
    stdout_filters: Sequence[str] = ()
    stderr_filters: Sequence[str] = ()
    log_line_prefix: str | None = None
    logs_specs: str | None = None
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    signals: Sequence[int] = ()
    worker_start: str = "auto"
    preload: Sequence[str] = DEFAULT_PRELOAD
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    events: str | None = None
    event_log_handler: str = "null"
    error_file: str | None = None
    standalone: bool = False
    handler_endpoint: str = ""
    handler_conf: Mapping[str, str] = field(default_factory=dict)
    registry_file: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def endpoint(self) -> Endpoint:
        """The first endpoint, and as a rule the only one."""
        return self.endpoints[0]

    def said(self, setting: str) -> str:
        """Return what the user wrote to give a setting its value: the option or the variable."""
        origin = self.origins.get(setting, "")
        variable = origin.removeprefix("environment ")
        return variable if variable != origin else "--" + setting.replace("_", "-")


def parse_nnodes(text: str) -> tuple[int, int]:
    """Return (min, max) nodes from "N" or "MIN:MAX"."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?", text)
    if match is None:
        raise UsageError(
            f"--nnodes={text!r} is not a number of nodes: expected N or MIN:MAX, as in 2 or 1:4"
        )
    low = int(match[1])
    high = int(match[2]) if match[2] is not None else low
    if not 1 <= low <= high:
        raise UsageError(
            f"--nnodes={text} asks for at least {low} and at most {high} nodes: "
            f"1 <= MIN <= MAX is expected",
            hint=f"Try --nnodes={high}:{low}." if 1 <= high < low else "Try --nnodes=1:4.",
        )
    return low, high


def parse_endpoint(text: str, *, default_port: int = DEFAULT_PORT) -> Endpoint:
    """Return the endpoint that "host", "host:port" or "[v6]:port" stands for."""
    match = re.fullmatch(
        r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:\[\]/,]+))(?::(?P<port>\d{1,5}))?",
        text.strip(),
    )
    if match is None:
        raise UsageError(
            f"--rdzv-endpoint={text!r} is not an endpoint: expected HOST or HOST:PORT, "
            "as in node0:29400, 10.0.0.1:29400 or [::1]:29400"
        )
    port = default_port if match["port"] is None else int(match["port"])
    if port > 65535:
        raise UsageError(f"--rdzv-endpoint={text!r} has port {port}: ports end at 65535")
    return Endpoint(host=match["v6"] or match["host"], port=port)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of "a:29400,b,c:29400": one as a rule, or several, all different."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not all(parts):
        raise UsageError(
            f"--rdzv-endpoint={text!r} has an empty place: expected HOST[:PORT],HOST[:PORT],..., "
            "as in node0:29400,node1:29400,node2:29400"
        )
    endpoints = tuple(parse_endpoint(part) for part in parts)
    for number, endpoint in enumerate(endpoints if len(endpoints) > 1 else ()):
        if endpoint.port == 0:
            raise UsageError(
                f"--rdzv-endpoint={text!r}: port 0 means any free one, which nobody could find"
            )
        if endpoint in endpoints[:number]:
            raise UsageError(
                f"--rdzv-endpoint={text!r} names {endpoint} twice: a majority of endpoints is "
                "counted, so that each has to be another one"
            )
    return endpoints


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
}
# Settings of torchrun's etcd backends.
_ETCD_SETTINGS = (
    *("protocol", "etcd_prefix", "cert", "key", "cacert"),
    *("ssl_cert", "ssl_cert_key", "ca_cert"),
)

_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")


def parse_rdzv_conf(text: str, *, backend: str = "c10d") -> RendezvousConf:
    """Return the settings of a "key=value,key=value" text; unknown keys are refused by name."""
    values: dict[str, str] = {}
    for key, value in _conf_items(text):
        if key in _ETCD_SETTINGS:
            raise UsageError(
                f"--rdzv-conf {key} is a setting of torch's etcd backends; here it is {backend}"
            )
        if key not in _CONF_FIELDS:
            known = sorted({*_CONF_FIELDS, *(_ETCD_V3_SETTINGS if backend == "etcd-v3" else ())})
            close = difflib.get_close_matches(key, known, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(
                f"--rdzv-conf has no setting {key!r}; known are {', '.join(known)}." + guess
            )
        values[key] = value
    fields: dict[str, float | bool | str] = {}
    for key, value in values.items():
        name = _CONF_FIELDS[key]
        if name is not None:
            fields[name] = _conf_value(key, name, value)
        elif key == "rank":
            if not re.fullmatch(r"\d{1,9}", value):
                raise UsageError(f"--rdzv-conf rank={value}: expected a whole number of at least 0")
        else:
            _conf_number(key, value)
    if "lease" not in values and (
        "keep_alive_interval" in values or "keep_alive_max_attempt" in values
    ):
        attempts = _conf_number("keep_alive_max_attempt", values.get("keep_alive_max_attempt", "3"))
        interval = fields.get("beat_interval_s", 5.0)
        assert isinstance(interval, float), "intervals are parsed as numbers"
        fields.setdefault("beat_interval_s", interval)
        fields["lease_s"] = interval * max(attempts, 2.0)
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


def parse_backend_conf(text: str, backend: str) -> tuple[RendezvousConf, Mapping[str, str]]:
    """Return what `--rdzv-conf` says to us, and what to a handler that is not ours.

    Of handlers, only torch's own settings are known by name.
    """
    values = dict(_conf_items(text))
    if backend in ("c10d", "static"):
        conf = parse_rdzv_conf(text)
        if backend == "c10d" and conf.store_type == "file":
            _refuse_quorum(values, "store_type=file: the file says who decides")
        return conf, {}
    if backend == "etcd-v3":
        theirs = {key: value for key, value in values.items() if key in _ETCD_V3_SETTINGS}
        ours = ",".join(f"{key}={value}" for key, value in values.items() if key not in theirs)
        for key in ("is_host", "store_type"):
            if key in values:
                raise UsageError(
                    f"--rdzv-conf {key} is a setting of c10d; with etcd-v3 no node hosts anything"
                )
        _refuse_quorum(values, "etcd-v3: etcd says who decides")
        return replace(parse_rdzv_conf(ours, backend=backend), quorum="granted"), theirs
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
    return dict(_conf_items(text)).get("store_type", "tcp").lower()


def _refuse_quorum(values: Mapping[str, str], why: str) -> None:
    if "quorum" in values:
        raise UsageError(f"--rdzv-conf quorum={values['quorum']} has no effect with {why}")


def _conf_items(text: str) -> Iterator[tuple[str, str]]:
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = (part.strip() for part in item.partition("="))
        if not separator or not key or not value:
            raise UsageError(
                f"--rdzv-conf={text!r}: {item!r} is not a setting; expected key=value,key=value"
            )
        yield key, value


def _conf_value(key: str, name: str, value: str) -> float | bool | str:
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


def _conf_number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        unit = "beats" if key == "keep_alive_max_attempt" else "seconds"
        raise UsageError(f"--rdzv-conf {key}={value}: expected a number of {unit} above 0")
    return number


def fill_in(text: str, *, local_rank: int) -> str:
    """Return the text with `${local_rank}` replaced, and `$$` by `$`; as torchrun's macros do.

    Any other `$` stays as it is.
    """
    return string.Template(text).safe_substitute(local_rank=str(local_rank))


def parse_filters(text: str) -> tuple[str, ...]:
    """Return the texts of "apple,orange"; two commas stand for one within a text.

    As with torchrun, an empty text between commas is one that every line contains.
    """
    if not text:
        return ()
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def parse_signals(text: str, known: Mapping[str, int]) -> tuple[int, ...]:
    """Return the signal numbers of a "SIGTERM,SIGINT" text; `known` maps names to numbers."""
    numbers = []
    for name in filter(None, (part.strip().upper() for part in text.split(","))):
        if name in ("SIGKILL", "SIGSTOP") or name not in known:
            raise UsageError(
                f"--signals-to-handle={text}: {name} is not a signal that can be handled; "
                "expected names such as SIGTERM,SIGINT,SIGHUP,SIGQUIT"
            )
        numbers.append(known[name])
    return tuple(numbers)
