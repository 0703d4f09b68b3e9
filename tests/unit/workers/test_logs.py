"""Where output goes: torchrun's folders and switches, and no round loses its logs to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_elastic.errors import UsageError
from pytest_elastic.workers.logs.folders import (
    MAX_NEWEST_ROUNDS,
    LogDirectory,
    LogSettings,
    Streams,
    line_prefix,
    parse_streams,
)


def opened(settings: LogSettings, run_id: str) -> LogDirectory:
    """Return a run's directory, made; whatever cannot be made fails the test."""
    logs = LogDirectory(settings, run_id, on_problem=pytest.fail)
    logs.open(said="--log-dir")
    return logs


NONE = Streams(stdout=False, stderr=False)
BOTH = Streams(stdout=True, stderr=True)


def test_streams_are_named_for_all_ranks_or_by_rank() -> None:
    """0, 1, 2, 3 as in torchrun, alone or as a list of rank:value."""
    assert parse_streams("3", option="--tee") == BOTH
    assert parse_streams("1", option="--tee") == Streams(stdout=True, stderr=False)
    assert parse_streams("0:0,2:3", option="--tee") == {0: NONE, 2: BOTH}


@pytest.mark.parametrize("text", ["", "4", "0:4", "0:1,", "a", "-1", "0:1 1:2", "11"])
def test_other_words_for_streams_are_refused(text: str) -> None:
    """The error names the option, the value and what is expected."""
    with pytest.raises(UsageError, match=f"--redirects={text} names no streams: expected 0"):
        parse_streams(text, option="--redirects")


def test_a_round_has_a_folder_for_each_worker(tmp_path: Path) -> None:
    """`<log_dir>/<run_id>_XXXX/attempt_<restarts>/<local rank>/...`, as torchrun lays it out."""
    logs = opened(LogSettings(log_dir=str(tmp_path), redirects="3"), "job/7")
    first, second = logs.prepare_round(1, 0, 2)
    (run,) = os.listdir(tmp_path)
    assert run.startswith("job_7_")
    assert first.stdout == str(tmp_path / run / "attempt_0" / "0" / "stdout.log")
    assert second.stderr == str(tmp_path / run / "attempt_0" / "1" / "stderr.log")
    assert second.error_file == str(tmp_path / run / "attempt_0" / "1" / "error.json")
    assert os.path.isdir(os.path.dirname(second.error_file))


def test_a_second_round_with_the_same_restart_count_keeps_the_first_ones_logs(
    tmp_path: Path,
) -> None:
    """Membership changes cost no restart; their rounds get folders of their own."""
    logs = opened(LogSettings(log_dir=str(tmp_path)), "job")
    folders = []
    for round_, restarts in ((1, 0), (2, 0), (3, 0), (4, 1)):
        (worker,) = logs.prepare_round(round_, restarts, 1)
        assert worker.error_file is not None
        folders.append(Path(worker.error_file).parent.parent.name)
    assert folders == ["attempt_0", "attempt_0.round_2", "attempt_0.round_3", "attempt_1"]


def test_of_many_rounds_the_first_and_the_newest_are_kept(tmp_path: Path) -> None:
    """A job that restarts for a month does not fill the disk, and how it began can be read."""
    logs = opened(LogSettings(log_dir=str(tmp_path)), "job")
    for round_ in range(1, MAX_NEWEST_ROUNDS + 4):
        (worker,) = logs.prepare_round(round_, round_ - 1, 1)
        assert worker.error_file is not None
        Path(worker.error_file).write_text("{}")
    (run,) = tmp_path.iterdir()
    kept = sorted(int(folder.name.removeprefix("attempt_")) for folder in run.iterdir())
    assert kept == [0, *range(3, MAX_NEWEST_ROUNDS + 3)]


def test_two_runs_share_a_log_dir(tmp_path: Path) -> None:
    """The same run id on another node, or once more, does not touch what is there."""
    for _ in range(2):
        opened(LogSettings(log_dir=str(tmp_path)), "job").prepare_round(1, 0, 1)
    assert len(os.listdir(tmp_path)) == 2


def test_tee_writes_a_file_and_shows_it(tmp_path: Path) -> None:
    """A tee'd stream is redirected too; one that is not mentioned goes to the console."""
    logs = opened(LogSettings(log_dir=str(tmp_path), redirects="1:2", tee="0:1"), "job")
    first, second = logs.prepare_round(1, 0, 2)
    assert first.stdout is not None
    assert (first.stderr, first.tee_stdout, first.tee_stderr) == (None, first.stdout, None)
    attempt = Path(first.stdout).parent.parent
    assert first.filtered_stdout == str(attempt / "filtered_stdout.log")
    assert second.stderr is not None
    assert (second.stdout, second.tee_stdout, second.tee_stderr) == (None, None, None)


def test_ranks_that_are_filtered_out_are_not_shown(tmp_path: Path) -> None:
    """Their files are written, their console output is not."""
    settings = LogSettings(log_dir=str(tmp_path), tee="1", local_ranks=(1,))
    first, second = opened(settings, "job").prepare_round(1, 0, 2)
    assert first.stdout is not None
    assert (first.stderr, first.tee_stdout, first.tee_stderr) == (os.devnull, None, None)
    assert (second.stderr, second.tee_stdout, second.tee_stderr) == (None, second.stdout, None)


def test_the_null_device_as_log_dir_writes_nothing() -> None:
    """No log, no error file, no folder."""
    settings = LogSettings(log_dir=os.devnull, redirects="1", tee="2")
    (worker,) = opened(settings, "job").prepare_round(1, 0, 1)
    assert (worker.stdout, worker.stderr) == (os.devnull, os.devnull)
    assert (worker.error_file, worker.tee_stdout, worker.tee_stderr) == (None, None, None)


def test_a_log_dir_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    """It names the option, the folder and the reason, before the node joins."""
    (tmp_path / "file").write_text("")
    for name in ("file", "file/logs"):
        with pytest.raises(UsageError, match=rf"--log-dir=.*{name}: cannot .*: Not a directory"):
            opened(LogSettings(log_dir=str(tmp_path / name)), "job")


def test_a_temporary_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for files: there are none, and that is said."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file" / "tmp"))
    problems: list[str] = []
    logs = LogDirectory(LogSettings(redirects="3"), "job", on_problem=problems.append)
    logs.open(said="--log-dir")
    (worker,) = logs.prepare_round(1, 0, 1)
    assert (worker.stdout, worker.stderr, worker.error_file) == (None, None, None)
    assert problems == ["cannot make a temporary folder for error files: Not a directory"]


def test_a_folder_that_is_gone_sends_the_output_of_a_round_to_the_console(tmp_path: Path) -> None:
    """A job that could go on does; ranks that are not to be shown are not."""
    problems: list[str] = []
    settings = LogSettings(log_dir=str(tmp_path / "logs"), tee="3", local_ranks=(1,))
    logs = LogDirectory(settings, "job", on_problem=problems.append)
    logs.open(said="--log-dir")
    assert logs.path is not None
    os.rmdir(logs.path)
    first, second = logs.prepare_round(2, 0, 2)
    assert (first.stdout, second.stdout) == (os.devnull, None)
    assert (second.error_file, second.tee_stdout, second.tee_stderr) == (None, None, None)
    (problem,) = problems
    assert "of round 2 in" in problem
    assert problem.endswith("No such file or directory; its output goes to the console")


@pytest.mark.parametrize(
    ("run_id", "folder"),
    [
        ("a/b/../c", "a_b_.._c_"),
        ("two\nlines\0", "two_lines__"),
        ("größe-学習", "größe-学習_"),
        ("x" * 300, "x" * 200 + "_"),
        ("学" * 300, "学" * 66 + "_"),
        ("\udcff", "__"),
        ("..", ".._"),
        ("", "_"),
    ],
)
def test_any_name_of_a_run_makes_a_folder(tmp_path: Path, run_id: str, folder: str) -> None:
    """Inside the given one, recognisable, and never too long."""
    path = opened(LogSettings(log_dir=str(tmp_path)), run_id).path
    assert path is not None
    assert os.path.dirname(path) == str(tmp_path)
    assert os.path.basename(path).startswith(folder)
    assert os.path.isdir(path)


def test_the_prefix_of_a_line_is_torchruns() -> None:
    """`[role0]:`, or a template in which unknown names stay."""
    worker = {"role": "r", "hostname": "node7", "rank": 5, "local_rank": 1}
    assert line_prefix(None, **worker) == "[r1]:"  # type: ignore[arg-type]  # as keywords
    template = "${role_name}/${rank}/${local_rank}/${hostname}/${other}: "
    assert line_prefix(template, **worker) == "r/5/1/node7/${other}: "  # type: ignore[arg-type]
