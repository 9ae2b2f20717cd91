# SPDX-License-Identifier: Apache-2.0
"""Archives that would write outside of the folder that they are unpacked into, or worse.

After the reports on Python's ``tarfile``: CVE-2007-4559 (names that lead out), CVE-2024-12718, CVE-2025-4138, CVE-2025-4330,
CVE-2025-4517 (links that resolve elsewhere once a path is too long for the system) and CVE-2025-4435.
"""

import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path


def entry(name, kind=tarfile.REGTYPE, link="", content=b"escaped\n", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, io.BytesIO(content) if kind == tarfile.REGTYPE else None


SYMLINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


def long_path(escape):
    """Folders with names so long that the path through the short links to them exceeds what the system resolves."""
    component, entries, path = "d" * 247, [], ""
    for letter in "abcdefghijklmnop":
        entries.append(entry(os.path.join(path, component), tarfile.DIRTYPE, mode=0o755))
        entries.append(entry(os.path.join(path, letter), SYMLINK, component))
        path = os.path.join(path, component)
    way = "/".join("abcdefghijklmnop")
    entries.append(entry(os.path.join(way, "l" * 254), SYMLINK, "../" * 16))
    entries.append(entry("escape", SYMLINK, os.path.join(way, "l" * 254) + "/" + escape))
    return entries


def archives(outside):
    """Name -> entries; ``outside`` is a folder beside the target, where nothing may appear."""
    up, secret = f"../{outside.name}", f"{outside}/kept"
    return {
        "name with dots": [entry(f"{up}/made")],
        "absolute name": [entry(f"{outside}/made")],
        "dots within": [entry(f"a/../../{outside.name}/made")],
        "folder outside": [entry(f"{up}/folder", tarfile.DIRTYPE)],
        "link out": [entry("out", SYMLINK, up), entry("out/made")],
        "absolute link": [entry("out", SYMLINK, str(outside)), entry("out/made")],
        "link to a link": [entry("a", SYMLINK, "."), entry("a/b", SYMLINK, ".."), entry(f"a/b/{outside.name}/made")],
        "link over itself": [entry("x", SYMLINK, secret), entry("x", content=b"changed")],
        "link to a file": [entry("x", SYMLINK, f"{up}/kept")],
        "hard link to a file": [entry("x", HARD, secret), entry("x", content=b"changed")],
        "hard link with dots": [entry("x", HARD, f"{up}/kept"), entry("x", content=b"changed")],
        "hard link to a link": [entry("s", SYMLINK, f"{up}/kept"), entry("x", HARD, "s"), entry("x", content=b"changed")],
        "long path": [*long_path(f"../{outside.name}"), entry("escape/made")],
        "long path and hard link": [
            *long_path(f"../{outside.name}/kept"), entry("x", HARD, "escape"), entry("x", content=b"changed")
        ],
        "mode through a link": [entry("x", SYMLINK, secret), entry("x", tarfile.DIRTYPE, mode=0o777)],
        "device": [entry("null", tarfile.CHRTYPE)],
        "named pipe": [entry("pipe", tarfile.FIFOTYPE)],
        "set user": [entry("tool", mode=0o6777)],
        "file under a file": [entry("a"), entry("a/b")],
    }  # fmt: skip


def write(path: Path, entries):
    with tarfile.open(path, "w:gz") as packed:
        for info, content in entries:
            packed.addfile(info, content)


def main(unpack):
    """Unpack each; print what was said of it and what became of the folder outside."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "outside")
        for number, name in enumerate(archives(outside)):
            place = Path(folder, str(number))
            place.mkdir()
            outside = place / "outside"
            outside.mkdir()
            (outside / "kept").write_text("kept")
            (outside / "kept").chmod(0o600)
            write(place / "hostile.tar.gz", archives(outside)[name])
            try:
                unpack(place / "hostile.tar.gz", place / "target")
                said = ""
            except ValueError as error:
                said = f"{type(error).__name__}: {error}"
            kept = outside / "kept"
            is_same = kept.read_text() == "kept" and kept.stat().st_mode & 0o777 == 0o600 and kept.stat().st_nlink == 1
            left = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_symlink())
            modes = [path for path in (place / "target").rglob("*") if path.stat().st_mode & 0o6000]
            intact = (
                is_same
                and os.listdir(outside) == ["kept"]
                and sorted(os.listdir(place)) == sorted(["outside", "hostile.tar.gz", "target"])
            )
            found[name] = (said, intact and not left and not modes)
    print(json.dumps({"python": sys.version.split()[0], "found": found}))


if __name__ == "__main__":
    from lightning_sagemaker.launch.transfer import unpack

    main(unpack)
