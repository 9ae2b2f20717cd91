# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from lightning.pytorch import callbacks

from lightning_sagemaker.strategies.stock_callbacks import STOCK_CALLBACKS

PAGE = Path(__file__).parents[2] / "docs" / "model-parallel.md"


def test_every_callback_of_lightning_has_been_decided_on():
    assert set(callbacks.__all__) <= {stock.name for stock in STOCK_CALLBACKS}


def test_the_page_has_every_callback_with_its_fate():
    rows = PAGE.read_text().splitlines()
    for stock in STOCK_CALLBACKS:
        fates = [f"refused: {reason}" if reason else "works" for reason in (stock.partitions, stock.sharded)]
        assert f"| `{stock.name}` | {fates[0]} | {fates[1]} | {stock.note} |" in rows
