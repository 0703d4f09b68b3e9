"""A token file is read, or refused in one line that says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_elastic.credentials import Credentials, read_token_file
from pytest_elastic.errors import UsageError

TOKEN = "0123456789abcdef"


def token_file(folder: Path, text: str, mode: int = 0o600) -> str:
    """Write a token file and return its path."""
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_a_token_is_what_the_file_holds_without_space_around_it(tmp_path: Path, mode: int) -> None:
    """A line end is no part of it: an editor may have added that."""
    path = token_file(tmp_path, f"\n {TOKEN}\n", mode)
    assert read_token_file(path, said="--rdzv-token-file") == TOKEN.encode()


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("", 0o600, "is empty"),
        (" \n", 0o600, "is empty"),
        ("short", 0o600, "holds 5 bytes: a token has at least 16"),
        (TOKEN, 0o644, "by every user of this machine (mode 0644)"),
        (TOKEN, 0o602, "by every user of this machine (mode 0602)"),
        ("x" * 70_000, 0o600, "is larger than"),
    ],
)
def test_what_is_no_secret_token_is_refused(
    tmp_path: Path, text: str, mode: int, problem: str
) -> None:
    """With the option and the path."""
    path = token_file(tmp_path, text, mode)
    with pytest.raises(UsageError) as refused:
        read_token_file(path, said="--rdzv-token-file")
    assert problem in refused.value.message
    assert refused.value.message.startswith(f"--rdzv-token-file={path} ")
    assert "\n" not in refused.value.message


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A path where nothing is, a folder, a pipe that nobody writes into."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, problem in (
        ("nothing", "No such file or directory"),
        ("", "is no plain file"),
        ("pipe", "is no plain file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(UsageError, match=problem):
            read_token_file(f"{tmp_path}/{name}", said="PET_RDZV_TOKEN_FILE")


def test_a_signature_is_of_one_token_one_job_and_one_text() -> None:
    """And parts are not the same as their concatenation."""
    ours = Credentials.of_job(b"token", "job")
    signature = ours.sign("a", "b")
    assert ours.has_signed(signature, "a", "b")
    assert not ours.has_signed(signature, "ab", "")
    assert not ours.has_signed(signature, "a", "c")
    assert not Credentials.of_job(b"token", "job2").has_signed(signature, "a", "b")
    assert not Credentials.of_job(b"tokem", "job").has_signed(signature, "a", "b")
    assert not ours.has_signed(None, "a", "b")
    assert "token" not in repr(ours)
