"""Files of nodes on machines: logs come here, folders and our code go there, saves are followed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.machines.folder_copies import pack_folder
from elastic_harness.cluster.machines.travel import code_roots
from elastic_harness.future import wait_for

from pytest_elastic.errors import UsageError
from tests.cluster_bench import LIMIT_S
from tests.machines import NEEDS_MACHINES, MachinesBench, Network, without_our_code

pytestmark = NEEDS_MACHINES


def test_logs_are_fetched_from_machines_that_share_no_files(tmp_path: Path) -> None:
    """All that a process printed is here before its end is reported; folders there are removed."""
    # Each machine has an empty folder of its own where the test's folder is.
    network = Network(2, prepare=f"mount -t tmpfs none {tmp_path.parent}; mkdir {tmp_path}")
    bench = MachinesBench(network, tmp_path)
    bench.start("n1", "n2")
    logs = tmp_path / "logs"
    code = (
        "import os, sys\n"
        "os.makedirs('logs/deep/er')\n"
        "open('logs/deep/er/log', 'wb').write(bytes(range(256)) * 4000)\n"
        "print('x' * 5_000_000)"
    )
    assert bench.finish(bench.run("n1", sys.executable, "-S", "-c", code, logs=str(logs))) == 0
    assert bench.printed() == "x" * 5_000_000 + "\n"
    assert (logs / "deep/er/log").read_bytes() == bytes(range(256)) * 4000
    with pytest.raises(ClusterError, match="there is no folder /nowhere on m2"):
        bench.run("n2", "true", cwd="/nowhere")
    bench.close()
    assert network.machines[0].run("ls", str(tmp_path)).split() == ["output"]
    network.end()


def test_files_are_followed_and_damaged_on_the_machine_that_has_them(tmp_path: Path) -> None:
    """Whether it shares them with pytest or not, and on a node's own disk."""
    lacks = f"mount -t tmpfs none {tmp_path.parent}; mkdir {tmp_path}"
    network = Network(3, prepare=f"case $(hostname) in m3) {lacks};; esac")
    bench = MachinesBench(network, tmp_path)
    cluster, saves = bench.cluster, tmp_path / "saves"
    saves.mkdir()
    told: list[tuple[str, str, int | None]] = []
    unseen: list[str] = []
    stop = cluster.files.watch(str(saves), lambda *each: told.append(each), unseen.append)
    bench.start("n1", "n2", "n3")
    code = (
        "import os, sys\n"
        "for path in (sys.argv[1], os.environ['DISK'] + '/own.pt'):\n"
        "    open(path + '.new', 'wb').write(b'1' * 100)\n"
        "    os.replace(path + '.new', path)\n"
    )
    for node in ("n1", "n2", "n3"):
        path, disk = str(saves / f"{node}.pt"), {"DISK": cluster.nodes[node].disk}
        saver = bench.run(node, sys.executable, "-S", "-c", code, path, environ=disk)
        assert bench.finish(saver) == 0
        saved = (f"{node}.pt", "moved", 100)
        bench.until(lambda saved=saved: saved in told, f"{node}.pt")  # type: ignore[misc]
    found = [(path, how) for path, how, _ in told]
    assert found == [
        (f"{node}.pt{end}", how)
        for node in ("n1", "n2", "n3")
        for end, how in ((".new", "written"), ("", "moved"))
    ]
    assert not unseen

    def damage(pattern: str, node: str) -> str:
        done = cluster.files.corrupt(pattern, "truncate", folders=[str(saves)], node=node)
        return wait_for(bench.loop, done, within_s=LIMIT_S)

    def sizes(node: str) -> list[str]:
        code = f"echo ---; stat -c %n:%s {saves}/* $DISK/*"
        bench.finish(bench.run(node, "sh", "-c", code, environ=disk))
        found = bench.printed().rpartition("---")[2]
        return [os.path.basename(line) for line in found.split()]

    assert "n3.pt, the newest of 1: cut to 50 of 100 bytes" in damage("*.pt", "n3")
    assert "/own.pt, the newest of 1: " in damage(f"{disk['DISK']}/*", "n2")
    assert sizes("n1") == ["n1.pt:100", "n2.pt:100", "own.pt:100"]
    assert sizes("n2") == ["n1.pt:100", "n2.pt:100", "own.pt:50"]
    assert sizes("n3") == ["n3.pt:50", "own.pt:100"]
    with pytest.raises(ClusterError, match=r"machine .*: no file in .*/saves matches 'n1.pt'"):
        damage("n1.pt", "n3")

    stop()
    bench.finish(bench.run("n3", "touch", str(saves / "later.pt")))
    assert told[-1][0] == "n3.pt"
    bench.close()
    network.end()


def test_our_own_code_travels_to_machines_that_lack_it(tmp_path: Path) -> None:
    """It is removed at the end, and after a kill by the next agent."""
    roots, came = code_roots(), "/var/tmp/pytest-elastic-0-*"
    network = Network(2, prepare=f"case $(hostname) in m2) {without_our_code()};; esac")
    machine = network.machines[1]
    with pytest.raises(subprocess.CalledProcessError):
        machine.run(sys.executable, "-c", "import pytest_elastic")
    bench = MachinesBench(network, tmp_path)
    (folder,) = machine.run("sh", "-c", f"echo {came}").split()
    bench.start("n1", "n2")
    code = "import elastic_harness, pytest_elastic; print(pytest_elastic.__file__)"
    for node, where in (("n1", roots[1]), ("n2", folder)):
        assert bench.finish(bench.run(node, sys.executable, "-c", code)) == 0
        assert bench.printed().splitlines()[-1] == f"{where}/pytest_elastic/__init__.py"
    launched = (sys.executable, "-m", "pytest_elastic", "run", "--preload=", "--no-python", "true")
    assert bench.finish(bench.run("n2", *launched)) == 0, bench.printed()
    environ = {"THERE": f"{roots[0]}/elastic_harness/job.py"}
    there = bench.run("n2", "sh", "-c", "test -f $THERE", environ=environ)
    assert bench.finish(there) == 0
    machine.run("pkill", "-9", "-f", "machines.agent")
    bench.until(lambda: bench.is_lost, "the machine to be lost")
    bench.close()
    again = MachinesBench(network, tmp_path)
    (another,) = machine.run("sh", "-c", f"echo {came}").split()
    assert another != folder
    again.close()
    network.wait_until_clean()
    assert machine.run("sh", "-c", f"echo {came}").split() == [came]
    network.end()


def test_other_code_of_the_same_version_is_not_used(tmp_path: Path) -> None:
    """One line of one file is enough: nodes run the code that pytest runs."""
    changed = f"{code_roots()[1]}/pytest_elastic/printed.py"
    change = f"cp {changed} /mnt/it; echo 'import sys' >>/mnt/it; mount --bind /mnt/it {changed}"
    prepare = f"case $(hostname) in m2) mount -t tmpfs none /mnt; {change};; esac"
    network = Network(2, prepare=prepare)
    bench = MachinesBench(network, tmp_path)
    bench.start("n1", "n2")
    code = "import pytest_elastic.printed as it; print(it.__file__, hasattr(it, 'sys'))"
    printed = []
    for node in ("n1", "n2"):
        assert bench.finish(bench.run(node, sys.executable, "-c", code)) == 0
        printed.append(bench.printed().splitlines()[-1])
    assert printed[0] == f"{changed} False"
    assert printed[1].startswith("/var/tmp/pytest-elastic-0-")
    assert printed[1].endswith("/pytest_elastic/printed.py False")
    bench.close()
    network.wait_until_clean()
    network.end()


def test_a_folder_is_copied_to_machines_that_lack_it(tmp_path: Path) -> None:
    """Not its repository, and nothing over what is there; what was copied is removed at the end."""
    program = tmp_path / "program"
    (program / "package").mkdir(parents=True)
    (program / "package" / "part.py").write_text("import os; print(os.readlink('link'))")
    (program / "main.py").write_text("import package.part")
    (program / "link").symlink_to("main.py")
    (program / ".git").mkdir()
    (program / ".git" / "large").write_bytes(os.urandom(1000))
    lacks = f"mount -t tmpfs none {tmp_path.parent}; mkdir {tmp_path}"
    network = Network(2, prepare=f"case $(hostname) in m2) {lacks};; esac")
    bench = MachinesBench(network, tmp_path, copy=str(program))
    bench.start("n1", "n2")
    for node in ("n1", "n2"):
        process = bench.run(node, sys.executable, "main.py", cwd=str(program))
        assert bench.finish(process) == 0, bench.printed()
    there = network.machines[1].run("ls", "-A", str(program)).split()
    assert set(there) - {"__pycache__"} == {"link", "main.py", "package"}
    bench.close()
    assert network.machines[1].run("ls", str(tmp_path)).split() == ["output"]
    assert (program / "main.py").exists()
    network.machines[1].run("mkdir", str(program))
    with pytest.raises(ClusterError, match=rf"cannot copy {program} to m2: there is another one"):
        MachinesBench(network, tmp_path, copy=str(program))
    network.wait_until_clean()
    network.end()


def test_a_folder_that_cannot_be_copied_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """None, one whose files cannot be read, and one that is too large."""
    with pytest.raises(UsageError, match="there is no such folder"):
        pack_folder(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="it cannot be read: "):
        pack_folder("/sys/kernel/mm")  # its files are shorter than they say
    with (tmp_path / "data").open("wb") as data:
        data.truncate(1 << 29)
    with pytest.raises(UsageError, match="it has 512 MiB, and 256 MiB are copied at most"):
        pack_folder(str(tmp_path))


def test_a_machine_whose_disk_is_full_is_named(tmp_path: Path) -> None:
    """What cannot be begun there says why; what runs there goes on, and all of it is removed."""
    full = f"mount -t tmpfs -o nr_inodes=3 none {tmp_path.parent}; mkdir {tmp_path}"
    network = Network(2, prepare=f"case $(hostname) in m2) {full};; esac")
    bench = MachinesBench(network, tmp_path)
    bench.start("n1", "n2")
    sleeps = bench.run("n2", "sleep", "600")
    with pytest.raises(ClusterError, match=r"machine \d+: cannot .*No space left on device"):
        bench.run("n2", "true", logs=f"{tmp_path}/logs")
    assert bench.finish(bench.run("n1", "true", logs=f"{tmp_path}/logs")) == 0
    assert sleeps.exit_code is None
    bench.close()
    network.wait_until_clean()
    assert network.machines[1].run("ls", str(tmp_path)).split() == ["output"]
    network.end()
