# SPDX-License-Identifier: Apache-2.0
"""The wheel of this package that goes along with a job."""

import base64
import csv
import hashlib
import io
import zipfile

from lightning_sagemaker.launch.source import wheel
from lightning_sagemaker.launch.source.wheel import make_wheel


def test_the_wheel_holds_what_it_says():
    name, content = make_wheel()
    wheel._wheel_of.cache_clear()
    assert make_wheel() == (name, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        record = {row[0]: row for row in csv.reader(io.StringIO(archive.read(record_of(archive)).decode())) if row}
        assert set(record) == set(archive.namelist())
        for path in archive.namelist():
            if not path.endswith("RECORD"):
                digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(path)).digest()).rstrip(b"=").decode()
                assert record[path][1] == f"sha256={digest}"
        names = archive.namelist()
    for wanted in ("launch/planning/data/images.json", "launch/templates/role.yaml", "container/lightning_driver.py"):
        assert f"lightning_sagemaker/{wanted}" in names
    assert "lightning_sagemaker/recipes/albert_mlm/tiny.yaml" in names
    assert not [path for path in names if "__pycache__" in path or path.startswith("tests")]


def test_a_change_is_seen_by_the_same_process(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text("1")
    monkeypatch.setattr(wheel, "_package_files", lambda: iter([("one.py", tmp_path / "one.py")]))
    before = make_wheel()
    assert make_wheel() is before
    (tmp_path / "one.py").write_text("12")
    assert zipfile.ZipFile(io.BytesIO(make_wheel()[1])).read("one.py") == b"12"


def record_of(archive):
    return next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
