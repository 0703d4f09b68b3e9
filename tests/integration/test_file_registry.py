"""Jobs whose nodes find each other in a file: `--rdzv-conf store_type=file`, real agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.launchers import Running
from tests.integration import granted_job
from tests.integration.granted_job import CONF, ending, host_and_other, starts, take_over

pytestmark = pytest.mark.slow


def agent(folder: Path, name: str, *more: str, conf: str = CONF) -> Running:
    """Start one node of the job; the file is named from where it runs."""
    conf = f"--rdzv-conf=store_type=file,{conf}"
    where = ("--rdzv-backend=c10d", "--rdzv-endpoint=job.rdzv", conf)
    return granted_job.agent(folder, name, "--nnodes=1:2", "--max-restarts=1", *where, *more)


def test_a_job_in_a_file_forms_restarts_survives_and_finds_itself_again(
    tmp_path: Path,
) -> None:
    """A failed worker, a killed host, then all nodes lost: the same job; its end stays there."""
    agents = {name: agent(tmp_path, name) for name in ("n1", "n2")}
    with ending(agents):
        host, other = host_and_other(agents)
        (tmp_path / "fail").touch()
        for each in (host, other):
            each.wait_for("started 2 2 1 1 ")
        host.process.kill()
        other.wait_for("started 3 1 1 2 ")
        assert f"{tmp_path}/job.rdzv names this node after " in other.printed
        other.process.kill()
        other.wait()
        # What was left is nobody's after a lease, and not forgotten.
        agents["n3"] = late = agent(tmp_path, "n3")
        agents["n4"] = latest = agent(tmp_path, "n4")
        for each in (late, latest):
            each.wait_for(" 2 1 3 ")
        assert starts(late)[-1][:4] == starts(latest)[-1][:4]
        assert starts(late)[-1].round > 3
        (tmp_path / "done").touch()
        assert [late.wait(), latest.wait()] == [0, 0], late.printed + latest.printed
        left = json.loads((tmp_path / "job.rdzv").read_text())["runs"]["job"]
        assert (left["holder"], left["record"]) == ("", "")
        said = json.loads(left["ending"])
        assert said["record"]["end"]["result"] == "succeeded"


def test_a_host_that_is_frozen_is_followed_and_comes_back_as_a_member(tmp_path: Path) -> None:
    """It counts no more, so another may; what it says then is said under a term that is over.

    A node that greets it meanwhile waits for a lease before it looks at the file again: longer than
    a store service is kept that is not asked anything.
    """
    conf = CONF.replace("lease=2", "lease=4")
    warm = "--worker-start=auto"
    agents = {name: agent(tmp_path, name, warm, conf=conf) for name in ("n1", "n2")}
    with ending(agents):
        host, other = host_and_other(agents)
        assert take_over(host, other).term == 2
        (tmp_path / "done").touch()
        assert [host.wait(), other.wait()] == [0, 0], host.printed + other.printed


def test_a_round_that_nobody_of_the_job_has_signed_is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    """A process that can write to the file can remove the record, but not make one up."""
    file, token = tmp_path / "job.rdzv", tmp_path / "token"
    token.write_text("of this job and of no other")
    token.chmod(0o600)
    alone = ("--nnodes=1", f"--rdzv-token-file={token}")
    agents = {"n1": (first := agent(tmp_path, "n1", *alone))}
    with ending(agents):
        first.wait_for("started 1 1 0 1 ")
        first.process.kill()
        first.wait()
        runs = json.loads(file.read_text())
        written = json.loads(runs["runs"]["job"]["record"])
        assert "signature" in written
        assert "signature" in runs["runs"]["job"]["holder"]
        written["record"]["round"] = 77
        runs["runs"]["job"]["record"] = json.dumps(written)
        file.write_text(json.dumps(runs) + "\n")
        agents["n2"] = second = agent(tmp_path, "n2", *alone)
        second.wait_for("started 1 1 0 2 ")
        assert "is no record of ours, signed with this job's token: not used" in second.printed
        (tmp_path / "done").touch()
        assert second.wait() == 0, second.printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rdzv-endpoint=.",), "--rdzv-endpoint={}: Is a directory"),
        (("--rdzv-endpoint=no/job",), "--rdzv-endpoint={}/no/job: there is no folder {}/no"),
        (("--rdzv-endpoint=stay.py",), "stay.py holds b'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_the_node_joins(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    """Exit code 2, one line and what to try."""
    ended = agent(tmp_path, "n1", *words)
    assert ended.wait() == 2
    assert message.format(tmp_path, tmp_path) in ended.printed
    assert len(ended.printed.splitlines()) == 2
