# SPDX-License-Identifier: Apache-2.0
"""What a command says about a disk, a file or a folder that cannot be used."""

import errno
import os
import shutil

import pytest

from lightning_sagemaker.errors import about_system
from lightning_sagemaker.recipe_files import copy_recipe


def of(number, *names):
    return OSError(number, os.strerror(number), *names)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_has_no_name_where_the_file_was_open(number):
    assert about_system(of(number)).startswith(f"the output cannot be written: {os.strerror(number)}. HINT: ")
    assert about_system(of(number, "x/y")).startswith("'x/y' cannot be written: ")


def test_other_errors_without_a_file_are_not_explained():
    assert about_system(of(errno.EIO)) is None
    assert about_system(OSError("a library's own. HINT: do this.")) is None


def test_a_recipe_that_cannot_be_copied_leaves_nothing(tmp_path, monkeypatch):
    def copied(source, target, **_):
        target.mkdir()
        shutil.copy2(source / "train.py", target)
        raise shutil.Error([(source, target, str(of(errno.ENOSPC, target)))])

    monkeypatch.setattr(shutil, "copytree", copied)
    with pytest.raises(shutil.Error) as caught:
        copy_recipe("albert-mlm", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    said = about_system(caught.value)
    assert said.startswith(f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}: ")
    assert said.count("HINT: ") == 1


@pytest.mark.parametrize("error", [of(errno.EAGAIN), RuntimeError("can't start new thread")])
def test_a_limit_of_processes_is_named(error):
    assert about_system(error).startswith("No further process or thread can be started here. HINT: raise the limit")
    assert about_system(RuntimeError("other")) is None
    assert about_system(BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 3)) is None
