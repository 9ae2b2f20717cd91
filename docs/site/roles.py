# SPDX-License-Identifier: Apache-2.0
"""Makes Sphinx's notation in docstrings Markdown: the pages of the reference are built with mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:\w+:)?(?:class|func|meth|mod|data|attr|exc):`(~?)([\w.]+)`")
_LITERAL_BLOCK = re.compile(r"::$", re.MULTILINE)


def to_markdown(text: str) -> str:
    """Roles become code, and the ``::`` before a literal block a colon.

    Args:
        text: Of a docstring.

    """
    shown = _ROLE.sub(lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2].lstrip('.')}`", text)
    return _LITERAL_BLOCK.sub(":", shown)


class Roles(griffe.Extension):
    """Changes every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
