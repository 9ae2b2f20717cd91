# SPDX-License-Identifier: Apache-2.0
"""Made-up bank transactions with the category of their merchant: the embedded example.

Statement lines as banks print them: channel, merchant in capitals and cut short, town, references, dates and amounts.
Merchants of the test and validation lines never occur in the training lines, so a model must have learned what kind of
word means which category, not who sells what. Every merchant is invented.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[float, float]]] = {
    "groceries": (("SUPERMARKET", "FOODS", "GROCERS", "FARM SHOP", "BAKERY", "BUTCHERS"), ("CARD", "POS"), (4, 140)),
    "restaurants": (("PIZZERIA", "BISTRO", "COFFEE", "GRILL", "NOODLE BAR", "DINER"), ("CARD", "POS"), (5, 90)),
    "transport": (("RAIL", "TAXIS", "BUSES", "METRO", "PARKING", "FERRIES"), ("CARD", "POS", "APP"), (2, 80)),
    "fuel": (("PETROL", "FUELS", "SERVICE STN", "GARAGE", "OIL CO"), ("CARD", "POS"), (20, 110)),
    "utilities": (("ENERGY", "WATER", "POWER", "GAS BOARD", "BROADBAND"), ("DIRECT DEBIT", "TRANSFER"), (15, 220)),
    "rent": (("LETTINGS", "PROPERTY MGMT", "ESTATES", "HOUSING ASSN"), ("STANDING ORDER", "TRANSFER"), (400, 2100)),
    "insurance": (("INSURANCE", "ASSURANCE", "MUTUAL", "UNDERWRITERS"), ("DIRECT DEBIT",), (8, 160)),
    "health": (("PHARMACY", "DENTAL CARE", "OPTICIANS", "CLINIC", "PHYSIO"), ("CARD", "POS"), (4, 260)),
    "entertainment": (("CINEMA", "THEATRE", "STREAMING", "ARCADE", "CONCERTS"), ("CARD", "APP"), (5, 120)),
    "clothing": (("FASHIONS", "SHOES", "OUTFITTERS", "TAILORS", "SPORTSWEAR"), ("CARD", "POS"), (10, 250)),
    "travel": (("AIRWAYS", "HOTEL", "TRAVEL", "HOSTELS", "CRUISES"), ("CARD", "APP"), (40, 1500)),
    "salary": (("PAYROLL", "WAGES", "SALARIES"), ("CREDIT", "BACS"), (900, 5200)),
}
"""Category -> words in the names of its merchants, channels, range of amounts."""

CATEGORIES = tuple(sorted(_KINDS))
_TOWNS = (
    "ASHBY",
    "BRENWICK",
    "CALDON",
    "DUNMERE",
    "ELVASTON",
    "FARLEIGH",
    "GLENROY",
    "HOLTSEA",
    "INVERLAY",
    "KELBROOK",
)
_ONSETS, _VOWELS, _ENDS = (
    ["B", "C", "D", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "T", "V", "W", "BR", "CL", "ST", "TR"],
    ["A", "E", "I", "O", "U"],
    ["N", "R", "S", "L", "X", "T"],
)
_MERCHANTS_PER_CATEGORY = 500
"""Merchants in each split: so many that each has few lines, and memorizing them does not help."""
_MISLEADING = 0.03
"""Share of lines without a word of the category: only the merchant's invented name."""

Record = dict[str, Any]


def transactions(count: int, split: str) -> list[Record]:
    """Records with ``text`` and ``category``.

    Args:
        count: Number of records.
        split: ``train``, ``val`` or ``test``: each has its own merchants.

    """
    merchants = _merchants(split)
    # A string as seed is hashed the same way by every Python.
    chance = random.Random(f"{split} 0")
    lines = (_line(chance, merchants, category) for category in _categories(chance, count))
    return [{"text": text, "category": category} for text, category in lines]


def _categories(chance: random.Random, count: int) -> Iterator[str]:
    """Random categories, some many times as frequent as others, as in real accounts."""
    weights = [1 / (1 + rank) for rank in range(len(CATEGORIES))]
    yield from chance.choices(CATEGORIES, weights, k=count)


def _merchants(split: str) -> dict[str, list[tuple[str, str]]]:
    """Category -> (invented name, word of the category); no name is in two splits."""
    chance = random.Random("merchants")
    names: set[str] = set()
    while len(names) < 3 * len(CATEGORIES) * _MERCHANTS_PER_CATEGORY:
        names.add("".join(chance.choice(part) for _ in range(2) for part in (_ONSETS, _VOWELS, _ENDS)))
    own = sorted(names)
    chance.shuffle(own)
    own = own[("train", "val", "test").index(split) :: 3]
    groups = {category: own[place :: len(CATEGORIES)] for place, category in enumerate(CATEGORIES)}
    return {
        category: [(name, chance.choice(_KINDS[category][0])) for name in group] for category, group in groups.items()
    }


def _line(chance: random.Random, merchants: dict[str, list[tuple[str, str]]], category: str) -> tuple[str, str]:
    name, word = chance.choice(merchants[category])
    _, channels, (low, high) = _KINDS[category]
    shop = name if chance.random() < _MISLEADING else f"{name} {word}"
    if chance.random() < 0.15:
        shop = shop[: chance.randint(max(4, len(shop) - 3), len(shop))]  # the field is too short for it
    parts = [
        chance.choice(channels) if chance.random() < 0.9 else "CARD",
        shop,
        chance.choice(_TOWNS) if chance.random() < 0.6 else "",
        f"REF {chance.randrange(10**6):06d}" if chance.random() < 0.5 else "",
        f"{chance.randint(1, 28):02d}/{chance.randint(1, 12):02d}" if chance.random() < 0.5 else "",
        f"{chance.uniform(low, high):.2f}",
    ]
    return " ".join(part for part in parts if part), category
