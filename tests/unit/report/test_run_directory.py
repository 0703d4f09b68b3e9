from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_harness.history.history import History
from elastic_harness.report.run_directory import create_run_directory, earlier_runs, safe_name

from pytest_elastic.errors import UsageError
from tests.unit.history.story import Story


def test_a_run_keeps_everything_in_one_directory(tmp_path: Path) -> None:
    """The layout that the documentation promises."""
    run = create_run_directory(str(tmp_path / "artifacts"), "crash-resume")
    history = History(run.history)
    for record in Story().round(1, ["n1", "n2"]).end().records:
        history.append(record)
    history.close()
    run.write_scenario("version: 1\n")
    Path(run.logs, "n1").mkdir(parents=True)
    Path(run.logs, "n1", "agent.log").write_text("hello\n")
    at = history.start + 1.5
    Path(run.path, "log-times.jsonl").write_text(f'{{"at":{at},"file":"n1/agent.log","size":6}}\n')
    run.write_reports(history, command="pytest x")
    names = sorted(
        str(path.relative_to(run.path)) for path in Path(run.path).rglob("*") if path.is_file()
    )
    assert names == [
        "history.jsonl",
        "log-times.jsonl",
        "logs/n1/agent.log",
        "scenario.yaml",
        "timeline.html",
        "trace.json",
    ]
    page = Path(run.timeline).read_text()
    assert "logs/n1/agent.log" in page
    assert '[1.5, "n1 agent.log", "hello", ""]' in page
    assert run.path == str(tmp_path / "artifacts" / "crash-resume")


def test_a_taken_name_gets_a_number_and_nothing_is_deleted(tmp_path: Path) -> None:
    """Existing files stay, whatever made them."""
    mine = tmp_path / "x"
    mine.mkdir()
    (mine / "precious").write_text("kept")
    paths = [create_run_directory(str(tmp_path), "x").path for _ in range(3)]
    assert paths == [str(tmp_path / f"x-{number}") for number in (2, 3, 4)]
    assert (mine / "precious").read_text() == "kept"


def test_any_test_id_is_a_folder_name_and_two_ids_are_two_names() -> None:
    """Slashes, colons and spaces go; what they told apart does not."""
    assert safe_name("crash-resume") == "crash-resume"
    ids = ["a/b.yaml::x[1]", "a/b.yaml::x[2]", "a:b", "a/b", "..", "", "é" * 200, "a" * 500]
    names = [safe_name(id) for id in ids]
    assert len(set(names)) == len(ids)
    assert all(name and "/" not in name and len(name) < 140 for name in names)
    assert not any(name.startswith(".") for name in names)


def test_artifacts_that_cannot_be_kept_are_refused_with_the_reason(tmp_path: Path) -> None:
    """A file where the folder should be, for example."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep the run 'x' in"):
        create_run_directory(str(tmp_path / "file"), "x")


def test_of_a_log_the_end_is_read(tmp_path: Path) -> None:
    """A failure stands at the end, and a job may have printed a gigabyte before it."""
    run = create_run_directory(str(tmp_path), "run")
    assert run.end_of_log("n1") == ""
    log = Path(run.logs, "n1", "launcher.log")
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 1_000_000 + b"\xff\nthe end\n")
    end = run.end_of_log("n1")
    assert end.endswith("\nthe end\n")
    assert len(end) <= 64 * 1024


def test_earlier_runs_are_those_with_a_page_the_newest_first(tmp_path: Path) -> None:
    """Links, other folders and the runs of this session are not listed."""
    for number, name in enumerate(("old", "new", "mine")):
        run = create_run_directory(str(tmp_path), name)
        Path(run.timeline).write_text("page")
        os.utime(run.timeline, (number, number))
    create_run_directory(str(tmp_path), "without-page")
    (tmp_path / "link").symlink_to(tmp_path / "old")
    found = earlier_runs(str(tmp_path), without={str(tmp_path / "mine")})
    assert found == [(str(tmp_path / "new"), 1.0), (str(tmp_path / "old"), 0.0)]
    assert earlier_runs(str(tmp_path / "none")) == []


def test_a_folder_for_runs_that_is_new_is_no_business_of_git(tmp_path: Path) -> None:
    """One that is there already is the user's, as it is."""
    create_run_directory(str(tmp_path / "new"), "run")
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"
    create_run_directory(str(tmp_path), "run")
    assert not (tmp_path / ".gitignore").exists()
