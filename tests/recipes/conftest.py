# SPDX-License-Identifier: Apache-2.0
"""A small text that is the same on every machine and every Python."""

import random

import pytest


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """120 articles of 5 to 200 words; which word comes next depends on the one before."""
    path = tmp_path_factory.mktemp("text") / "articles.txt"
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(400)]
    following = {word: rng.sample(words, 3) for word in words}
    articles = []
    for _ in range(120):
        article = [rng.choice(words)]
        for _ in range(rng.randint(4, 199)):
            article.append(rng.choice(following[article[-1]]))
        articles.append(" ".join(article))
    path.write_text("\n\n".join(articles))
    return path
