# SPDX-License-Identifier: Apache-2.0
"""Prices, and where they come from."""

import json

import pytest

from lightning_sagemaker.launch.planning.images import SMDDP_VERSIONS, find_image
from lightning_sagemaker.launch.planning.instances import INSTANCES
from lightning_sagemaker.launch.planning.pricing import estimate, load_prices, refresh_prices


def test_prices_are_refreshed_from_the_price_list(tmp_path, monkeypatch):
    """The price list has no server here: its pages are as AWS documents them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Pricing:
        def get_paginator(self, name):
            assert name == "get_products"
            return self

        def paginate(self, ServiceCode, Filters):
            assert ServiceCode == "AmazonSageMaker"
            assert {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-west-1"} in Filters
            dimension = {"x": {"pricePerUnit": {"USD": "31.5"}}}
            product = {
                "product": {"attributes": {"instanceName": "ml.p4d.24xlarge", "component": "Training"}},
                "terms": {"OnDemand": {"y": {"priceDimensions": dimension}}},
            }
            return [{"PriceList": [json.dumps(product)]}, {"PriceList": []}]

    refresh_prices("eu-west-1", Pricing())
    prices = load_prices("eu-west-1")
    assert prices.usd_per_hour == {"ml.p4d.24xlarge": 31.5}
    assert estimate(prices, {"ml.p4d.24xlarge": 2}, 3600, "eu-west-1", spot=False).at_most == 63.0
    assert estimate(prices, {"ml.p5.48xlarge": 2, "ml.p4d.24xlarge": 2}, 3600, "eu-west-1", spot=False) is None
    assert load_prices("us-east-1").usd_per_hour["ml.g5.xlarge"] == 1.408
    (tmp_path / "lightning-sagemaker" / "prices-eu-west-1.json").write_text("{")
    assert load_prices("eu-west-1").region == "us-east-1"


def test_tables_agree():
    assert set(load_prices("us-east-1").usd_per_hour) <= set(INSTANCES)
    for version in SMDDP_VERSIONS:
        assert find_image("us-east-1", "ml.p4d.24xlarge", version).smddp


def test_a_spot_job_may_cost_as_much_as_one_on_demand():
    """AWS: a spot price is at most that on demand."""
    found = estimate(load_prices("us-east-1"), {"ml.g5.xlarge": 2}, 7200, "us-east-1", spot=True)
    assert found.per_hour == pytest.approx(2 * 1.408 * 0.4)
    assert found.at_most == pytest.approx(2 * 1.408 * 2)


def test_the_table_is_of_regions_with_equal_prices():
    table, hosts = load_prices("eu-west-1"), {"ml.g5.xlarge": 1}
    known = [
        region
        for region in ("us-east-1", "us-west-2", "eu-west-1")
        if estimate(table, hosts, 1, region, False).is_of_region
    ]
    assert known == ["us-east-1", "us-west-2"]
