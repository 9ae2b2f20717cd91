# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (characters that look like others are what this is about)
"""Short texts in encodings of one byte a character: Central European ones are not taken for Western ones."""

import pytest

from lightning_sagemaker.recipes._common.data.encodings import UnknownEncodingError, decode
from lightning_sagemaker.recipes._common.data.tables import DataError, read_files

CENTRAL = {
    "Slovene": "text;label\nPlačilo računa;nakup\nTekoči račun;banka\nPolog;banka\nČe ni računa;nakup\n",
    "Croatian": "text;label\nRačun za struju;režije\nPlaća za ožujak;dohodak\nKupnja u dućanu;hrana\n",
    "Hungarian": "text;label\nFizető kártya;vásárlás\nElőfizetés díja;számla\nErős Pista bolt;vásárlás\n",
    "Romanian": "text;label\nPlată cu cardul;cumpărături\nChirie în iunie;locuință\nRetragere;numerar\n",
    "Czech": "text;label\nDěkuji;jiné\nDům;bydlení\nZpět;jiné\n",
}
WESTERN = {
    "French": "Où est la crème ? «\xa0Île à l’été\xa0»\xa0: voilà",
    "Italian": "Perché è così, però più caffè; lunedì la città",
    "Catalan": "Conèixer què fèiem a València; història",
    "Portuguese": "Não, as informações põem limões; irmãs, mãe, amanhã, manhãzinha",
}


@pytest.mark.parametrize("language", CENTRAL)
def test_central_european_text_is_not_taken_for_western(language):
    data = CENTRAL[language].replace("ț", "ţ").encode("cp1250")
    with pytest.raises(UnknownEncodingError, match=r"read as cp1252 it has"):
        decode(data)


@pytest.mark.parametrize("language", WESTERN)
def test_western_text_is_read(language):
    assert decode(WESTERN[language].encode("cp1252")) == (WESTERN[language], "cp1252")


def test_text_that_was_encoded_twice_is_refused_unless_the_encoding_is_set(tmp_path):
    for codec in ("cp1252", "latin-1"):
        twice = "text,label\nGebühr für Überweisung,é\n".encode().decode(codec)
        (tmp_path / "table.csv").write_text(twice, encoding="utf-8")
        with pytest.raises(DataError, match=r"encoded in UTF-8 twice: .* stands for 'ü'\. HINT: decode it once"):
            read_files([tmp_path / "table.csv"])
        assert decode(twice.encode(), "utf-8")[0] == twice
    for once in ("Ã¼ is ü, encoded twice", "Ã is a letter", "naïve «é»", "Größe"):
        assert decode(once.encode()) == (once, "utf-8")
