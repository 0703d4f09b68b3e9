"""Which machines there are, and by which command an agent is brought there."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.machines.choose import placement_of
from elastic_harness.cluster.machines.log_copies import write_copy
from elastic_harness.cluster.machines.placement import (
    CallBack,
    CommandPlacement,
    read_machines,
)
from elastic_harness.cluster.machines.ray_placement import RayPlacement
from elastic_harness.cluster.machines.travel import AGENT

from pytest_elastic.errors import UsageError


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """A file with machines, comments and empty lines."""
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode-a\n\nubuntu@node-b  # the other\nssh://node-c:2222\n")
    return path


def test_machines_are_one_a_line(hosts: Path) -> None:
    """Comments and empty lines are none."""
    assert read_machines(str(hosts)) == ["node-a", "ubuntu@node-b", "ssh://node-c:2222"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no machines"),
        ("# none\n", "there are no machines"),
        ("a\nb\na\n", "names a twice"),
        ("a\n-oProxyCommand=evil\n", "line 2: '-oProxyCommand=evil' is no machine"),
        ("a b\n", "line 1: 'a b' is no machine"),
        ("a;reboot\n", "is no machine"),
    ],
)
def test_a_file_that_names_no_machines_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the line, and nothing that ssh or a shell would take for something else."""
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_machines(str(path))


def test_ssh_gets_the_agent_as_one_word(hosts: Path) -> None:
    """Ssh hands its words to a shell, which is to see the command as it is."""
    placement = placement_of("ssh", hosts=str(hosts), ssh="ssh -F 'my config'")
    command = placement.command("node-a")
    assert command[:3] == ["ssh", "-F", "my config"]
    assert command[-3:-1] == ["--", "node-a"]
    assert shlex.split(command[-1]) == list(AGENT)
    assert placement.addresses("node-a", 5000) == [("", 5000)]


def test_a_command_gets_the_agent_as_words(hosts: Path) -> None:
    """Or as one, where it stands in another word."""
    words = placement_of("command: srun -w $machine $agent", hosts=str(hosts))
    assert words.command("node-a") == ["srun", "-w", "node-a", *AGENT]
    quoted = placement_of("command: su - me -c 'exec $agent'", hosts=str(hosts))
    assert quoted.command("node-a") == ["su", "-", "me", "-c", f"exec {shlex.join(AGENT)}"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("command:", "does not say where the agent goes"),
        ("command: srun -w $machine", "does not say where the agent goes"),
        ("command: srun $host $agent", r"\$machine and \$agent are all there is"),
        ("command: 'srun $agent", "No closing quotation"),
        ("namespace", "does not bring agents to machines"),
    ],
)
def test_what_brings_no_agent_anywhere_is_refused(hosts: Path, kind: str, message: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match=message):
        placement_of(kind, hosts=str(hosts))


class WithRooms(CommandPlacement):
    """A placement whose machines have room for 1, 3, 0 and 2 nodes that need anything."""

    def room_on(
        self, machine: str, resources: Mapping[str, float], labels: Mapping[str, str]
    ) -> float:
        """Return that."""
        return dict(zip(self.machines, (1.0, 3.0, 0.0, 2.0), strict=True))[machine]


def test_nodes_go_to_one_machine_after_the_other() -> None:
    """Those that need something: to those that have it, for as long as there is room."""
    template = ["$machine", "$agent"]
    placement = WithRooms("x", "abcd", template, call_back=CallBack(), keeps_agents=True)
    assert "".join(placement.machine_for(index, {}, {}) for index in range(1, 7)) == "abcdab"
    needing = [placement.machine_for(index, {"GPU": 0.5}, {}) for index in range(1, 7)]
    assert "".join(needing) == "abdbdb"
    lacking = (
        r"GPU: 0\.5, zone: z: there is room for 6 such nodes \(1 on a, 3 on b, 0 on c, 2 on d\)"
    )
    with pytest.raises(ClusterError, match=lacking):
        placement.machine_for(7, {"GPU": 0.5}, {"zone": "z"})


def test_where_agents_call_back_may_have_a_port() -> None:
    """A name is looked up here, as machines may not know it."""
    assert CallBack.parse("") == CallBack()
    assert CallBack.parse("127.0.0.1:77") == CallBack(host="127.0.0.1", port=77)
    assert CallBack.parse("::1") == CallBack(host="::1")
    for text in ("127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(UsageError, match=r"expected HOST or HOST:PORT"):
            CallBack.parse(text)


def test_a_ray_that_nobody_answers_for_is_told_at_once() -> None:
    """Ray itself, which need not be installed for this, would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    message = f"the Ray at ray://127.0.0.1:{port}: nothing answers there \\(Connection refused\\)"
    placement = RayPlacement(f"ray://127.0.0.1:{port}", count=0, call_back=CallBack())
    with pytest.raises(UsageError, match=message):
        placement.survey("", ())
    assert not placement.own_fds
    assert not placement.own_pids


def test_pieces_of_a_log_lie_where_they_belong(tmp_path: Path) -> None:
    """Also those that come twice; a log that is begun anew is emptied first."""
    path = tmp_path / "deep" / "log"
    for offset, data in ((0, b"abcdef"), (6, b"ghi"), (6, b"ghi")):
        write_copy(str(path), offset, data)
    assert path.read_bytes() == b"abcdefghi"
    write_copy(str(path), 0, b"x")
    assert path.read_bytes() == b"x"
