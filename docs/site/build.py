# SPDX-License-Identifier: Apache-2.0
"""Build the site: ``make docs``, or ``python docs/site/build.py [FOLDER]``; every warning is an error.

The pages are the Markdown files that people read in the repository. They are copied to FOLDER/pages, where a link to another
page becomes a link of the site, and a link to any other file one to a page that shows that file. Then Zensical builds
FOLDER/site.
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CODE = {".py": "python", ".yaml": "yaml", ".md": "markdown", ".toml": "toml", ".json": "json"}

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def sources(root: Path) -> dict[str, str]:
    """Path in the repository -> path of its page in the site, of every Markdown file that is a page.

    Args:
        root: Of the repository.

    """
    docs = (path for path in (root / "docs").rglob("*.md") if (root / "docs" / "site") not in path.parents)
    pages = {path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix() for path in docs}
    pages |= {f"recipes/{path.parent.name}/README.md": f"recipes/{path.parent.name}.md" for path in _readmes(root)}
    return pages | {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def _readmes(root: Path) -> list[Path]:
    return sorted((root / "recipes").glob("*/README.md"))


class Pages:
    """Writes the pages.

    Args:
        root: Of the repository.
        target: Folder of the pages.

    Attributes:
        shown: Path in the repository -> page, of the files that are linked to and are no pages themselves.

    """

    def __init__(self, root: Path, target: Path) -> None:
        self._root, self._target = root, target
        self._pages = sources(root)
        self.shown: dict[str, str] = {}

    def write(self) -> None:
        """Write all of them, the files that they link to last.

        Raises:
            SystemExit: If a link leads nowhere.

        """
        for source, page in self._pages.items():
            parts = _FENCE.split((self._root / source).read_text())  # every second part is a block of code
            parts[::2] = [self._with_links(part, source, page) for part in parts[::2]]
            self._save(page, "".join(parts))
        for source, page in self.shown.items():
            self._save(page, f"# `{source}`\n\n{show(self._root / source)}")
        shutil.copytree(self._root / "docs" / "images", self._target / "images")

    def _with_links(self, text: str, source: str, page: str) -> str:
        return _LINK.sub(lambda link: link[1] + self._place(link[2], source, page) + link[3], text)

    def _place(self, link: str, source: str, page: str) -> str:
        name, _, anchor = link.partition("#")
        if not name or "://" in name:
            return link
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        path = self._root / linked
        if not path.is_file():
            sys.exit(f"{source}: {link} leads nowhere")
        if linked.startswith("docs/images/"):
            to = linked.removeprefix("docs/")
        elif linked in self._pages:
            to = self._pages[linked]
        elif linked == "README.md":
            to = "index.md"
        else:
            to = self.shown.setdefault(linked, f"files/{linked}.md")
        return posixpath.relpath(to, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")

    def _save(self, page: str, text: str) -> None:
        path = self._target / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def show(path: Path) -> str:
    """A file of the repository as Markdown: the cells of a notebook, or one block of code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(f"```python\n{cell}\n```" if kind == "code" else cell for kind, cell in cells)
    language = CODE.get(path.suffix, "text")
    return f"````{language}\n{text}````\n"


def commands() -> str:
    """The help of every command, from the command line's own parser."""
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["COLUMNS"] = "90"
    from lightning_sagemaker import cli

    parser = cli.build_parser()
    (choices,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(f"## {name}\n\n```text\n{_help(one)}```\n" for name, one in choices.items())


def _help(parser: argparse.ArgumentParser) -> str:
    """Its own, and that of what it has below it."""
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return "\n".join([parser.format_help(), *(_help(one) for choices in below for one in choices.values())])


def build(folder: Path) -> int:
    """Build the site; the exit code is Zensical's.

    Args:
        folder: For pages and site; what was built there before is replaced.

    """
    for name in ("pages", "site"):
        shutil.rmtree(folder / name, ignore_errors=True)
    pages = Pages(ROOT, folder / "pages")
    pages.write()
    page = folder / "pages" / "reference" / "commands.md"
    page.write_text(page.read_text().replace("<!-- commands -->", commands()))
    shutil.copy(HERE / "style.css", folder / "pages")
    configuration = folder / "zensical.toml"
    configuration.write_text((HERE / "zensical.toml").read_text().replace("@ROOT@", ROOT.as_posix()))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(configuration)]
    return subprocess.run(command, cwd=folder, timeout=300).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()))
