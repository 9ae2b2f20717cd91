# SPDX-License-Identifier: Apache-2.0
"""Made-up towns and questions about them in SQuAD 2.0's form: the embedded example.

Each paragraph states some facts of an invented town, each question asks for one of them, or for one that is not stated.
Towns, people and rivers of the validation questions never occur in training, so a model must have learned to find the
answer, not to remember it.
"""

from __future__ import annotations

import random
from typing import Any

_FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "mayor": (
        ("The mayor of {town} is {value}.", "{value} has been its mayor for years."),
        ("Who is the mayor of {town}?", "What is the name of the mayor of {town}?"),
        "person",
    ),
    "charter": (
        ("It received its charter in {value}.", "The charter dates from {value}."),
        ("When did {town} receive its charter?", "From what year is the charter of {town}?"),
        "year",
    ),
    "population": (
        ("About {value} people live there.", "Its population is {value}."),
        ("How many people live in {town}?", "What is the population of {town}?"),
        "number",
    ),
    "river": (
        ("The town lies on the river {value}.", "The river {value} runs through it."),
        ("On which river does {town} lie?", "Which river runs through {town}?"),
        "name",
    ),
    "product": (
        ("It is known for its {value}.", "Much {value} is made there."),
        ("What is {town} known for?", "What is made in {town}?"),
        "good",
    ),
    "fair": (
        ("A fair is held every {value}.", "In {value} there is a fair."),
        ("When is the fair of {town} held?", "In which month is there a fair in {town}?"),
        "month",
    ),
    "tower": (
        ("Its tower is {value} tall.", "A tower of {value} stands in the market place."),
        ("How tall is the tower of {town}?", "What is the height of the tower in {town}?"),
        "height",
    ),
}
"""Fact -> ways to state it, ways to ask for it, kind of its value."""

_GOODS = ("cheese", "glass", "pottery", "silk", "cider", "paper", "honey", "clocks", "lace", "barrels", "soap", "bells")
_MONTHS = ("January", "March", "April", "May", "June", "July", "August", "September", "October", "November")
_ONSETS = ("b", "br", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w")
_VOWELS, _ENDS = ("a", "e", "i", "o", "u"), ("n", "r", "l", "m", "s", "ck", "th")
_UNANSWERABLE = 0.25
_STATED = (3, 6)
_QUESTIONS = 4
"""Questions about each paragraph."""

Article = dict[str, Any]


def fact_articles(count: int, split: str) -> list[Article]:
    """Articles of SQuAD's JSON, each with one paragraph.

    Args:
        count: Number of articles.
        split: ``train`` or ``val``; no invented name is in both.

    """
    chance = random.Random(f"{split} 0")
    return [_article(chance, split, number) for number in range(count)]


def _article(chance: random.Random, split: str, number: int) -> Article:
    town = _name(chance, split)
    stated = chance.sample(sorted(_FACTS), chance.randint(*_STATED))
    values = {fact: _value(chance, split, _FACTS[fact][2]) for fact in stated}
    context = ""
    starts = {}
    for fact in stated:
        sentence = chance.choice(_FACTS[fact][0])
        before = sentence.index("{value}")
        space = " " if context else ""
        starts[fact] = len(context) + len(space) + len(sentence[:before].format(town=town))
        context += space + sentence.format(town=town, value=values[fact])
    questions = [_question(chance, town, stated, values, starts, f"{split}-{number}-{i}") for i in range(_QUESTIONS)]
    return {"title": town, "paragraphs": [{"context": context, "qas": questions}]}


def _question(
    chance: random.Random, town: str, stated: list[str], values: dict[str, str], starts: dict[str, int], name: str
) -> dict[str, Any]:
    impossible = chance.random() < _UNANSWERABLE
    fact = chance.choice(sorted(set(_FACTS) - set(stated))) if impossible else chance.choice(stated)
    answers = [] if impossible else [{"text": values[fact], "answer_start": starts[fact]}]
    question = chance.choice(_FACTS[fact][1]).format(town=town)
    return {"id": name, "question": question, "is_impossible": impossible, "answers": answers}


def _value(chance: random.Random, split: str, kind: str) -> str:
    if kind == "person":
        return f"{_name(chance, split)} {_name(chance, split)}"
    if kind == "name":
        return _name(chance, split)
    if kind == "year":
        return str(chance.randint(1150, 1950))
    if kind == "number":
        return f"{chance.randint(2, 400)} hundred"
    if kind == "height":
        return f"{chance.randint(10, 90)} metres"
    return chance.choice(_MONTHS if kind == "month" else _GOODS)


def _name(chance: random.Random, split: str) -> str:
    """An invented name of two syllables; the vowel of the first belongs to one split only."""
    vowels = _VOWELS[:3] if split == "train" else _VOWELS[3:]
    first = chance.choice(_ONSETS) + chance.choice(vowels)
    return (first + chance.choice(_ONSETS) + chance.choice(_VOWELS) + chance.choice(_ENDS)).capitalize()
