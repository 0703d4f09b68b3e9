"""Every setting of `--rdzv-conf`: what it sets, and which test shows that this has an effect."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from pytest_elastic import rdzv_conf
from pytest_elastic.cli.options import parse_run_command
from pytest_elastic.config import LaunchConfig
from pytest_elastic.errors import UsageError
from pytest_elastic.launch import settings_of
from pytest_elastic.port_range import PortRange

TESTS = Path(__file__).parents[2]

# Settings that become one of those on which all nodes of a job agree: a value, which that is, what
# it is then, and a test of what follows.
AGREED: Mapping[str, tuple[str, str, object, str]] = {
    "beat_interval": ("0.7", "beat_interval_s", 0.7, "spec/test_r05_losing.py::after_a_refusal"),
    "keep_alive_interval": (
        *("2", "beat_interval_s", 2.0),
        "unit/cli/test_options.py::keep_alive_settings_of_torchrun",
    ),
    "keep_alive_max_attempt": (
        *("4", "lease_s", 20.0),
        "unit/cli/test_options.py::keep_alive_settings_of_torchrun",
    ),
    "lease": ("7", "lease_s", 7.0, "spec/test_r06_leases.py::a_member_without_echoes"),
    "drift": ("0.2", "drift_s", 0.2, "spec/test_r06_leases.py::others_start_no_earlier"),
    "last_call_timeout": ("3", "last_call_s", 3.0, "spec/test_r01_first_round.py::between_min"),
    "join_timeout": (
        *("3", "join_timeout_s", 3.0),
        "integration/test_launcher_bad_input.py::a_host_that_nobody_joins",
    ),
    "min_round": ("3", "min_round_s", 3.0, "spec/test_r07_newcomers.py::rounds_made_for_newcomers"),
    "newcomer_window": ("3", "newcomer_window_s", 3.0, "spec/test_r07_newcomers.py::all_who_arr"),
    "linger": ("3", "linger_s", 3.0, "spec/test_r10_the_end.py::one_that_was_cut_off"),
    "store_timeout": ("3", "store_timeout_s", 3.0, "spec/test_r08_worker_store.py::without_an_add"),
    "kill_timeout": (
        "7",
        "kill_timeout_s",
        7.0,
        "spec/test_r02_later_rounds.py::a_member_that_is_slow",
    ),
    "quorum": ("majority", "quorum", "majority", "spec/test_r12_when_it_is_on.py::with_torchruns"),
}
# Settings of how this node gets to the others.
OF_THE_NODE: Mapping[str, str] = {
    "is_host": "integration/test_launcher_bad_input.py::a_node_that_is_to_host",
    "store_type": "integration/test_file_registry.py::a_job_in_a_file",
    "port_range": "integration/test_port_range.py::a_job_listens_on_ports_of_the_range",
    "protocol": "integration/test_etcd_v3.py::an_etcd_behind_tls",
    "ca_cert": "integration/test_etcd_v3.py::an_etcd_behind_tls",
    "ssl_cert": "integration/test_etcd_v3.py::an_etcd_that_asks_for_a_certificate",
    "ssl_cert_key": "integration/test_etcd_v3.py::an_etcd_that_asks_for_a_certificate",
    "user": "integration/test_etcd_v3.py::a_user_and_a_password",
    "password_file": "integration/test_etcd_v3.py::a_user_and_a_password",
}
# Accepted for the sake of commands that work today; the page says why they have none.
WITHOUT_EFFECT = ("close_timeout", "heartbeat_timeout", "read_timeout", "timeout", "rank")


def parse(conf: str, backend: str = "c10d") -> LaunchConfig:
    """Read a command line with some settings."""
    words = ("--nnodes=2:4", f"--rdzv-backend={backend}", f"--rdzv-conf={conf}")
    return parse_run_command([*words, "--no-python", "true"], {}, count_devices=lambda _: 1)


def test_every_setting_is_here() -> None:
    """A new one brings the test of its effect, or the reason why it has none."""
    known = {*rdzv_conf._CONF_FIELDS, *rdzv_conf._ETCD_V3_SETTINGS}
    assert known == {*AGREED, *OF_THE_NODE, *WITHOUT_EFFECT}


@pytest.mark.parametrize("setting", AGREED)
def test_a_setting_reaches_the_machines_and_changes_nothing_else(setting: str) -> None:
    """What the machines do with it is the business of the test that is named."""
    text, field, value, _ = AGREED[setting]
    before = msgspec.to_builtins(settings_of(parse("")))
    after = msgspec.to_builtins(settings_of(parse(f"{setting}={text}")))
    assert after[field] == value != before[field]
    # An interval between beats is of no use without a lease of several; from that, others follow.
    follows = {*rdzv_conf.FROM_LEASE, "lease_s"}
    with_it = follows if setting == "lease" or setting.startswith("keep_alive") else set()
    assert {key for key in after if after[key] != before[key]} <= {field, *with_it}


def test_what_is_not_given_follows_from_the_lease() -> None:
    """A lease alone is enough, shorter than a beat is by default, or longer than all of them."""
    default, short, long = (settings_of(parse(text)) for text in ("", "lease=1.2", "lease=60"))
    assert settings_of(parse("lease=5")) == default
    for one in (short, long):
        assert one.beat_interval_s == one.lease_s / 5
        assert one.drift_s >= one.lease_s / 10
    assert short.linger_s == default.linger_s < long.linger_s
    assert short.min_round_s < default.min_round_s == long.min_round_s
    given = settings_of(parse("drift=0.1,lease=60,beat_interval=3"))
    assert (given.drift_s, given.beat_interval_s) == (0.1, 3.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30000", "expected the first and the last port, as in 30000-30100"),
        ("30000-", "expected the first and the last port, as in 30000-30100"),
        ("30000:30100", "expected the first and the last port, as in 30000-30100"),
        ("-1-30100", "expected the first and the last port, as in 30000-30100"),
        ("0-30100", "ports are numbers from 1 to 65535"),
        ("30000-70000", "ports are numbers from 1 to 65535"),
        ("30100-30000", "the first port is above the last one"),
        ("30000-30002", "expected at least 4 ports for each launcher on this machine"),
    ],
)
def test_a_port_range_that_is_none_is_refused(text: str, expected: str) -> None:
    """Before anything is started; the message says what is expected."""
    with pytest.raises(UsageError) as refused:
        parse(f"port_range={text}")
    assert refused.value.message.startswith(f"--rdzv-conf port_range={text}: {expected}")


def test_nodes_need_not_agree_on_a_port_range() -> None:
    """It says what a firewall lets through on one machine."""
    with_it = parse("port_range=30000-30003")
    assert with_it.rendezvous.port_range == PortRange(first=30000, last=30003)
    assert settings_of(with_it) == settings_of(parse(""))


def test_the_ports_of_a_range_are_tried_in_turn() -> None:
    """Beginning behind the newest, and each once."""
    ports = PortRange(first=30000, last=30003)
    assert ports.after(30001) == (30002, 30003, 30000, 30001)
    assert ports.after(30003) == (30000, 30001, 30002, 30003)
    assert sorted(ports.after(2**32 - 1)) == [30000, 30001, 30002, 30003]


@pytest.mark.parametrize("setting", WITHOUT_EFFECT)
def test_a_setting_without_effect_has_none_and_a_reason(setting: str) -> None:
    """It is accepted where it can be meant, and says so on the page."""
    assert parse(f"{setting}=30").rendezvous == parse("").rendezvous
    for value in ("0", "often"):
        assert parse(f"{setting}={value}").rendezvous == parse("").rendezvous
    page = (TESTS.parent / "docs" / "torchrun-parity.md").read_text()
    assert f"| `{setting}` | no effect: " in page


@pytest.mark.parametrize("setting", [*AGREED, *OF_THE_NODE])
def test_the_test_of_a_settings_effect_is_there(setting: str) -> None:
    """By the beginning of its name."""
    path, _, name = (AGREED[setting][3] if setting in AGREED else OF_THE_NODE[setting]).partition(
        "::"
    )
    rule = path.partition("test_r")[2][:2]
    prefix = f"test_r{rule}_{name}" if path.startswith("spec/") else f"test_{name}"
    names = [
        each.name
        for each in ast.walk(ast.parse((TESTS / path).read_text()))
        if isinstance(each, ast.FunctionDef)
    ]
    assert [each for each in names if each.startswith(prefix)], names
