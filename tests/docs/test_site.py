# SPDX-License-Identifier: Apache-2.0
"""The site is built without a warning, has every page, and its reference has everything public."""

import ast
import importlib
import re
import sys
import types

import pytest

import lightning_sagemaker
from docs.site import build
from docs.site.roles import to_markdown
from lightning_sagemaker import callbacks, launch
from tests.conftest import ROOT, run_bounded

REFERENCE = ROOT / "docs" / "reference"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def resolve(path: str):
    """The object of a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(resolve(module), name)


def directives() -> set[str]:
    return {path for page in REFERENCE.glob("*.md") for path in DIRECTIVE.findall(page.read_text())}


def documented() -> list[object]:
    sdk = {
        "lightning_sagemaker.launch.SMDDP",
        "lightning_sagemaker.launch.ModelParallel",
    }  # importing them takes the SDK
    found = [resolve(path) for path in directives() - sdk]
    modules = [one for one in found if isinstance(one, types.ModuleType)]
    return found + [getattr(one, name) for one in modules for name in getattr(one, "__all__", vars(one))]


def imported_by_pages() -> set[str]:
    """What examples in the pages import from this package, as dotted paths."""
    found = set()
    for page in build.sources(ROOT):
        for block in PYTHON.findall((ROOT / page).read_text()):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lightning_sagemaker":
                    found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


PUBLIC = {
    f"{package.__name__}.{name}" for package in (lightning_sagemaker, launch, callbacks) for name in package.__all__
}


def test_nothing_public_is_missing_from_the_reference():
    there = [id(one) for one in documented()]
    missing = {path for path in (PUBLIC | imported_by_pages()) - directives() if id(resolve(path)) not in there}
    assert missing == set(), "add `::: NAME` to a page in docs/reference/"


def test_every_page_is_in_the_navigation():
    navigation = re.findall(r'= "([\w/-]+\.md)"', (ROOT / "docs" / "site" / "zensical.toml").read_text())
    assert sorted(navigation) == sorted(build.sources(ROOT).values())


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    for name in ("docs/images", "recipes/one"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "recipes/one/README.md"):
        (tmp_path / name).write_text("# Page\n")
    (tmp_path / "docs" / "index.md").write_text(
        "[one](../recipes/one/README.md#page) [code](a.py)\n```\n[x](y.md)\n```\n"
    )
    with pytest.raises(SystemExit, match=r"docs/index\.md: a\.py leads nowhere"):
        build.Pages(tmp_path, tmp_path / "pages").write()
    (tmp_path / "docs" / "a.py").write_text("pass\n")
    build.Pages(tmp_path, tmp_path / "pages").write()
    written = (tmp_path / "pages" / "index.md").read_text()
    assert written.splitlines()[0] == "[one](recipes/one.md#page) [code](files/docs/a.py.md)"
    assert "[x](y.md)" in written
    assert "````python\npass\n````" in (tmp_path / "pages" / "files" / "docs" / "a.py.md").read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("See :class:`~a.b.C` and :func:`.f`.", "See `C` and `f`."),
        ("Example::\n\n    x = 1", "Example:\n\n    x = 1"),
        ("A ratio of 1::2 stays.", "A ratio of 1::2 stays."),
    ],
)
def test_notation_of_docstrings(text, shown):
    assert to_markdown(text) == shown


def test_the_site_is_built_without_a_warning(tmp_path):
    result = run_bounded([sys.executable, ROOT / "docs" / "site" / "build.py", tmp_path], timeout=120)
    assert result.returncode == 0, result.stdout[-4000:]
    assert "No issues found" in result.stdout
    site = tmp_path / "site"
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert {f"{page[:-3]}.html" for page in build.sources(ROOT).values()} <= set(pages)
    raw = {name for name, text in pages.items() if re.search(r":(class|func|meth|mod):<code>|:::", text)}
    assert raw == set(), "Sphinx's notation or a directive is on the page"
    assert all(f'id="{path}"' in "".join(pages.values()) for path in ("lightning_sagemaker.SMDDPStrategy",))
    assert "--processes-per-host" in pages["reference/commands.html"]
