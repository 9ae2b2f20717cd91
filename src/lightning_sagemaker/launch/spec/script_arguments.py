# SPDX-License-Identifier: Apache-2.0
"""Parse options that ``launch`` passes on to the script, such as ``--epochs 3``, as hyperparameters."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

from lightning_sagemaker.errors import LaunchError

_OWN = (
    "config", "instance-type", "max-cost", "instance-count", "distribution", "role", "region", "source-dir", "channel",
    "spot", "target",
    "output-path", "max-run", "set", "save", "dry-run", "rehearse", "rehearse-set", "rehearse-channel", "rehearse-hosts",
    "rehearse-root", "yes", "no-wait", "poll", "refresh-prices", "refresh-instances", "register", "inference-image",
)  # fmt: skip
"""Options of ``launch``: a similar option is probably a typo, which would start the wrong job."""

_NEAR = 0.85


def script_hyperparameters(arguments: Sequence[str]) -> dict[str, object]:
    """Hyperparameters from ``--name value`` and ``--name=value``.

    Args:
        arguments: Arguments that ``launch`` does not know, in order; those after ``--`` are not compared with its
            options.

    Returns:
        The hyperparameters by name. A value is decoded from JSON if encoding it again gives the same text, as for
        numbers, ``true`` and ``null``; any other is a string.

    Raises:
        LaunchError: If there is anything but options with values, or an option similar to one of ``launch``.

    """
    found: dict[str, object] = {}
    rest, is_sure = list(arguments), False
    while rest:
        text = rest.pop(0)
        if text == "--":
            is_sure = True
            continue
        name, equals, value = text.partition("=")
        if not name.startswith("-") or not name.strip("-"):
            raise LaunchError(
                f"The script was given {text!r}. HINT: SageMaker passes a script only options with values: --name value."
            )
        name = name.lstrip("-")
        near = difflib.get_close_matches(name, _OWN, n=1, cutoff=_NEAR)
        if near and not is_sure:
            raise LaunchError(
                f"The option {text!r} is not an option of launch. HINT: did you mean '--{near[0]}'? If it belongs to the"
                " script, put it after `--`."
            )
        if not equals:
            if not rest or _is_option(rest[0]):
                raise LaunchError(
                    f"The script's option {text!r} has no value. HINT: SageMaker passes a script only options with values:"
                    f" --{name} true, if it accepts that."
                )
            value = rest.pop(0)
        found[name] = _typed(value)
    return found


def _is_option(text: str) -> bool:
    """Whether a string is an option, not a negative number."""
    if not text.startswith("-") or text == "-":
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def _typed(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if json.dumps(value) == text and not isinstance(value, str) else text
