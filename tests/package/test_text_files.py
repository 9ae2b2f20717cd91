# SPDX-License-Identifier: Apache-2.0
"""A file that cannot be written leaves nothing beside it."""

import pytest

from lightning_sagemaker.text_files import write_text


def test_what_cannot_be_put_in_place_is_removed(tmp_path):
    (tmp_path / "x" / "y").mkdir(parents=True)
    with pytest.raises(OSError, match="x"):
        write_text(tmp_path / "x", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
