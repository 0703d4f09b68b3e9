"""The copy that a run works in: what is copied, what is linked, and what it may not change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_harness.scenario.stage.working_copy import copy_working_folder

from pytest_elastic.errors import UsageError

MIB = 1 << 20


def made(folder: Path, **sizes: int) -> Path:
    """Make files of these sizes in a folder; `__` in a name is the slash of a path."""
    for name, size in sizes.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
    return folder


def test_small_files_are_copied_and_large_ones_linked(tmp_path: Path) -> None:
    """What a run writes into its copy is not in the original."""
    source = made(tmp_path / "here", train=10, data=17 * MIB, src__model=10)
    copy = tmp_path / "copy"
    assert copy_working_folder(str(source), str(copy)) == [str(source / "data")]
    (copy / "train").write_text("changed")
    (copy / "src" / "model").write_text("changed")
    assert (source / "train").stat().st_size == (source / "src" / "model").stat().st_size == 10
    assert (copy / "data").readlink() == source / "data"


def test_a_folder_of_large_files_takes_new_ones_beside_links(tmp_path: Path) -> None:
    """Old checkpoints of the user's own are linked; a run's new ones are in the copy."""
    source = made(tmp_path / "here", saved__old=17 * MIB, saved__small=10 * MIB, saved__note=10)
    copy = tmp_path / "copy"
    linked = copy_working_folder(str(source), str(copy))
    assert sorted(linked) == [str(source / "saved" / "old"), str(source / "saved" / "small")]
    (copy / "saved" / "new").write_text("")
    assert not (copy / "saved" / "note").is_symlink()
    assert not (source / "saved" / "new").exists()


def test_a_folder_of_many_files_is_linked(tmp_path: Path) -> None:
    """As a whole: a data set of images, say."""
    source = made(tmp_path / "here", **{f"data__{number}": 0 for number in range(2001)})
    copy = tmp_path / "copy"
    assert copy_working_folder(str(source), str(copy)) == [str(source / "data")]
    assert (copy / "data").is_symlink()


def test_what_is_named_is_left_out(tmp_path: Path) -> None:
    """A folder or a file, at the top or below; what is not there may be named, too."""
    source = made(tmp_path / "here", out__a=1, src__out__b=1, src__c=1, src__d=1, note=1)
    copy = tmp_path / "copy"
    copy_working_folder(str(source), str(copy), ["out/", "./src/c", "nowhere"])
    left = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert left == ["note", "src/d", "src/out/b"]


def test_what_is_left_out_does_not_make_a_folder_large(tmp_path: Path) -> None:
    """Else the folder would be linked as a whole, and what is left out would be seen."""
    old = {f"out__old__{number}": 0 for number in range(2001)}
    source = made(tmp_path / "here", out__note=1, **old)
    copy = tmp_path / "copy"
    assert copy_working_folder(f"{source}/", str(copy), ["out/old"]) == []
    assert os.listdir(copy / "out") == ["note"]


def test_links_lead_to_the_copy_of_what_they_led_to(tmp_path: Path) -> None:
    """Absolute ones, too; what is outside, or is left out of the copy, is the original."""
    source = made(tmp_path / "here", runs__3__x=1, venv__y=1)
    made(tmp_path, outside__z=1)
    (source / "latest").symlink_to("runs/3")
    (source / "newest").symlink_to(source / "runs" / "3")
    (source / "env").symlink_to("venv")
    (source / "data").symlink_to(tmp_path / "outside")
    (source / "up").symlink_to(tmp_path)
    copy = tmp_path / "copy"
    linked = copy_working_folder(str(source), str(copy))
    assert sorted(linked) == [str(source / "venv"), str(tmp_path / "outside")]
    for name in ("latest", "newest"):
        assert (copy / name).resolve() == copy / "runs" / "3"
    assert (copy / "env" / "y").exists()
    assert not os.path.lexists(copy / "up"), "it holds the copy itself"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the folder, and what the system says."""
    source = made(tmp_path / "here", file=1)
    with pytest.raises(UsageError, match=r"working folder .*here cannot be copied: .*nowhere"):
        copy_working_folder(str(source), str(tmp_path / "nowhere" / "copy"))
