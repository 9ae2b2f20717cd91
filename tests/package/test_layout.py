# SPDX-License-Identifier: Apache-2.0
"""Tests of ``src/lightning_sagemaker/FOLDER/FILE.py`` are ``tests/FOLDER/test_FILE.py``, or ``test_FILE_ASPECT.py``."""

import pytest

from tests.conftest import ROOT

SRC, TESTS = ROOT / "src" / "lightning_sagemaker", ROOT / "tests"

SCENARIOS = {
    "chaos": "training that is interrupted, compared with stock Lightning",
    "distributed": "groups of processes that train",
    "docs": "the pages, their commands and the examples",
    "end_to_end": "launch, service, container and strategy in one go",
    "gpu": "what one GPU can decide",
    "machines": "other machines than this",
    "recipes": "the recipes, which are not in src",
}
"""Folders of tests that span many subpackages."""

NAMED_OTHERWISE = {
    "bench/test_guard.py": "benchmarks/guard.py, which src does not hold",
    "compat/test_private_names.py": "the tables names_*.py of _compat/ against the source and the libraries",
    "data/test_sharing.py": "also simulator/output.py, which a full /dev/shm and a closed terminal concern alike",
    "package/test_argument_docs.py": "docstrings of all of src and recipes",
    "package/test_extended.py": "tests/extended.py",
    "package/test_layout.py": "the layout of the tests",
    "package/test_skips.py": "tests/skips.py",
    "package/test_types.py": "Any in all of src",
    "package/test_versions.py": "the metadata and constraints.txt",
    "recovery/test_in_job.py": "the scenario of the subpackage: jobs whose ranks are lost",
    "recovery/test_each_hook.py": "the same, with a rank that dies in any hook",
    "recovery/test_own_state.py": "the same, in a script with attributes and loaders of its own",
    "recovery/test_several_fits.py": "the same, in a script that trains several times",
}
"""Tests that are not named after a file of src -> what they test."""

WITHOUT_TESTS = {
    "simulator/image_start": "what a simulated host imports: tests/simulator",
}
"""Folders of src without a folder or a file of tests of that name -> where they are tested."""

AWS_PACKAGES = {"smdistributed", "torch_sagemaker"}
"""Folders whose inner packages follow AWS's own layout, and are tested together."""

TEST_FILES = sorted(
    path for path in (found.relative_to(TESTS) for found in TESTS.rglob("test_*.py")) if path.parts[0] not in SCENARIOS
)


def folders() -> set[str]:
    """The packages of src with code of their own, two levels deep, as paths below src."""
    found = {
        path.parent.relative_to(SRC) for pattern in ("*/__init__.py", "*/*/__init__.py") for path in SRC.glob(pattern)
    }
    return {
        folder.as_posix()
        for folder in found
        if len(folder.parts) == 1 or (folder.parts[0] not in AWS_PACKAGES and any((SRC / folder).glob("[a-z]*.py")))
    }


def names_of(name: str) -> set[str]:
    """What a test file in the folder of this name may be named after."""
    folder = SRC if name == "package" else SRC / name
    folder = folder if folder.is_dir() else SRC / f"_{name}"
    names = {path.stem.strip("_") for path in folder.glob("*.py") if path.stem != "__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} if name != "package" else set()
    return names | packages | {folder.name}


@pytest.mark.parametrize("path", TEST_FILES, ids=str)
def test_a_file_of_tests_is_named_after_a_file_of_src(path):
    if path.as_posix() in NAMED_OTHERWISE:
        return
    name, names = path.stem.removeprefix("test_"), names_of(path.parent.as_posix())
    assert any(name == one or name.startswith(f"{one}_") for one in names), (
        f"tests/{path} is named after no file of that folder of src; put it beside the tests of what it tests, or into"
        f" a folder of scenarios ({', '.join(SCENARIOS)})"
    )


def test_each_folder_has_tests():
    tested = {path.parent.as_posix() for path in TEST_FILES}
    tested |= {(path.parent / path.stem.removeprefix("test_")).as_posix() for path in TEST_FILES}
    assert len(folders()) > 20
    without = {folder for folder in folders() if folder.strip("_") not in tested}
    assert sorted(without - set(WITHOUT_TESTS)) == [], "add tests/FOLDER, or an entry in WITHOUT_TESTS"
    assert sorted(set(WITHOUT_TESTS) - without) == [], "they have tests: remove them from WITHOUT_TESTS"


def test_the_exceptions_are_there():
    gone = [name for name in NAMED_OTHERWISE if not (TESTS / name).is_file()]
    assert gone == [], "there are no such files: remove them from NAMED_OTHERWISE"
    gone = [name for name in SCENARIOS if not (TESTS / name).is_dir()]
    assert gone == [], "there are no such folders: remove them from SCENARIOS"
