# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (which characters look like others is what this is about)
"""Text from bytes: UTF-8 and UTF-16 are recognized for certain, Western European text of one byte a character by its words.

Any bytes can be read as ISO 8859-1, so a file that is not Unicode is taken for Windows' cp1252 (ISO 8859-1 and more)
only where nothing in it speaks for another encoding: then each row's accents are those of one language's alphabet, and
no symbol stands where another encoding has a letter (Polish in cp1250 read as cp1252 is full of ``by³``). Everything
else is refused until the encoding is named.
"""

from __future__ import annotations

import codecs
import re

WESTERN = "cp1252"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ALPHABETS = (
    "äöüßéèàê",  # German
    "àâæçéèêëîïôœùûü",  # French
    "áéíóúüñ",  # Spanish
    "áàâãçéêíóôõú",  # Portuguese
    "àèéìíòóùú",  # Italian
    "àçèéíïòóúü",  # Catalan
    "äëïöüéèêáíóúç",  # Dutch
    "åäöéüæøóòôàè",  # Danish, Finnish, Norwegian, Swedish
)
"""Letters beyond a to z. Icelandic is not among them: its own letters are in the places of frequent Turkish ones."""
_BETWEEN_LETTERS = "’‘´·—…\xa0\xad"
_NEVER = "ƒˆ˜¤¦¨¯¬¸‰"
_NOT_AFTER_LETTERS = "³¹¿¡£¥¢¶¼½¾ªº²±×µ"
_NOT_BEFORE_LETTERS = "£¥¢¶¼½¾³¹ªº"
_MISPLACED = re.compile(r"è(?!i[ex])[aeiouy]|õ(?!e)|[ìù]\w|ã(?![eoismz])\w|\bî(?!l)\w", re.IGNORECASE)
"""Accents where no Western European language has them, but others that letter: ``raèun`` is ``račun``, ``erõs`` ``erős``."""
_UNITS = re.compile(r"\b(?:[kcdmµ]?m[²³]|N[ºª]|n[ºª])", re.ASCII)
_CONTINUATIONS = re.escape(bytes(range(0x80, 0xC0)).decode(WESTERN, "ignore"))
_ALIEN = re.compile(rf"[^\x00-\x7f\xa0]{{3}}|[ÂÃ][{_CONTINUATIONS}]")
"""Three non-ASCII characters in a row: another script. The second alternative: damaged UTF-8."""


class UnknownEncodingError(ValueError):
    """The encoding is unknown, or not the given one."""


def decode(data: bytes, encoding: str | None = None) -> tuple[str, str]:
    """The text, without a byte order mark, and the name of its encoding.

    Args:
        data: Content of a complete file.
        encoding: Name of a Python codec. ``None``: detected.

    Raises:
        UnknownEncodingError: If the encoding cannot be detected, or is not the given one.

    """
    found = encoding or find_encoding(data)
    try:
        return data.decode(found).removeprefix("\ufeff"), found
    except (LookupError, UnicodeError) as error:
        raise UnknownEncodingError(f"it is not {found}: {error}") from error


def find_encoding(data: bytes) -> str:
    """Name of the encoding.

    Raises:
        UnknownEncodingError: If it cannot be detected.

    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    if b"\0" in data[:4096]:
        return _find_utf16(data[:4096])
    if b"\x1b" in data:  # as in ISO 2022, which switches character sets by ASCII escape sequences
        raise UnknownEncodingError("it holds escape characters, so it is not plain text")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        _check_western(data, error)
        return WESTERN
    _check_once(text)
    return "utf-8"


def _check_once(text: str) -> None:
    """Refuse UTF-8 that was encoded again, as what takes it for one byte a character does: ``Ã¼`` for ``ü``."""
    if text.isascii():
        return
    for codec in (WESTERN, "latin-1"):
        try:
            inner = text.encode(codec).decode("utf-8")
        except UnicodeError:
            continue
        raise UnknownEncodingError(
            f"it was encoded in UTF-8 twice: {_first_odd(text)!r} stands for {_first_odd(inner)!r}."
            f" HINT: decode it once, for example with iconv -f UTF-8 -t {codec}"
        )


def _first_odd(text: str) -> str:
    found = re.search(r"[^\x00-\x7f]+", text)
    assert found is not None  # the text is not ASCII
    return found.group()[:4]


def _find_utf16(data: bytes) -> str:
    """UTF-16 without a byte order mark: in mostly ASCII text every second byte is 0."""
    even, odd = data[::2].count(0), data[1::2].count(0)
    if odd > 10 * even and odd > len(data) // 5:
        return "utf-16-le"
    if even > 10 * odd and even > len(data) // 5:
        return "utf-16-be"
    raise UnknownEncodingError("it holds zero bytes, so it is not text")


def _check_western(data: bytes, error: UnicodeDecodeError) -> None:
    where = f"it is not UTF-8 (byte {error.start})"
    try:
        text = data.decode(WESTERN)
    except UnicodeDecodeError:
        raise UnknownEncodingError(f"{where}, nor {WESTERN}") from None
    for line in text.splitlines():
        if not line.isascii() and (odd := _find_odd(line)):
            raise UnknownEncodingError(f"{where}, and read as {WESTERN} it has {odd!r}")


def _find_odd(line: str) -> str | None:
    """Characters that Western European text would not contain; ``None`` if there are none."""
    if found := _ALIEN.search(line):
        return found.group()
    letters = {char for char in line.lower() if char.isalpha() and not char.isascii()} - set("ªºµ")
    if not any(letters <= set(alphabet) for alphabet in _ALPHABETS):
        return "".join(sorted(letters))[:10]
    if found := _MISPLACED.search(line):
        return found.group()
    plain = _UNITS.sub(" ", line)
    for before, char, after in zip(f" {plain}", plain, f"{plain[1:]} ", strict=False):
        if char.isascii() or (char.isalpha() and char not in "ªºµ"):
            continue
        beside = _is_letter(before) and (_is_letter(after) or char in _NOT_AFTER_LETTERS)
        if char in _NEVER or "\x80" <= char <= "\x9f" or (beside and char not in _BETWEEN_LETTERS):
            return f"{before}{char}{after}".strip()
        if char in _NOT_BEFORE_LETTERS and _is_letter(after):
            return f"{char}{after}"
    return None


def _is_letter(char: str) -> bool:
    return char.isalpha() and char not in "ªºµ"


def check_encoding(name: str | None) -> None:
    """Refuse an encoding that Python does not know.

    Raises:
        MisconfigurationException: If ``name`` is not a Python codec.

    """
    try:
        codecs.lookup(name or "utf-8")
    except LookupError:
        from lightning.fabric.utilities.exceptions import MisconfigurationException  # slow to import

        raise MisconfigurationException(
            f"data.encoding={name!r} was set, which is not a Python codec. HINT: use utf-8, utf-16, cp1252 or latin-1, "
            "for example."
        ) from None
