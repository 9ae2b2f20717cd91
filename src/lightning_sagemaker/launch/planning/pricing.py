# SPDX-License-Identifier: Apache-2.0
"""Cost estimates, from the package's dated table of prices or from one read from AWS's price list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from lightning_sagemaker.aws_types import Client
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import make_client
from lightning_sagemaker.launch.planning.instances import INSTANCES, refreshed_table
from lightning_sagemaker.text_files import write_text

_LIST_REGION = "us-east-1"
"""Region of the Price List API, which has the prices of all regions."""


@dataclass(frozen=True)
class Prices:
    """Prices of one region.

    Attributes:
        region: AWS region of the prices.
        date: Date of their collection, ISO format.
        source: Source of the prices, as text.
        usd_per_hour: Instance type -> on-demand price of one instance for an hour of training, in US dollars.
        spot_share: Typical spot price as a fraction of the on-demand price; spot prices vary.
        same_in: Further regions with the same prices.

    """

    region: str
    date: str
    source: str
    usd_per_hour: dict[str, float]
    spot_share: float
    same_in: tuple[str, ...] = ()

    def hold_in(self, region: str) -> bool:
        """Whether they are the prices of ``region``."""
        return region in (self.region, *self.same_in)


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a job in US dollars.

    Attributes:
        per_hour: Price of all hosts together per hour.
        at_most: Cost if the job runs until ``max_run``, on demand: a spot price may rise to that.
        note: Source of the prices, and what the estimate leaves out.
        is_of_region: Whether the prices are those of the job's region.

    """

    per_hour: float
    at_most: float
    note: str
    is_of_region: bool


def load_prices(region: str) -> Prices:
    """The refreshed table of ``region`` if there is one, else the package's, which is of us-east-1."""
    refreshed = refreshed_table(f"prices-{region}")
    if refreshed.is_file():
        try:
            return _parse(json.loads(refreshed.read_text()))
        except (ValueError, KeyError, TypeError):
            pass  # invalid; use the package's own
    return _parse(json.loads((resources.files(__package__) / "data" / "prices.json").read_text()))


def estimate(prices: Prices, hosts: Mapping[str, int], seconds: int, region: str, spot: bool) -> Estimate | None:
    """Estimated cost of a job; None if the price of an instance type is unknown.

    Args:
        prices: Prices of any region; the note names it.
        hosts: Instance type -> number of hosts.
        seconds: Seconds for which the hosts are paid at most.
        region: AWS region of the job.
        spot: Whether the job uses spot instances.

    """
    if not all(name in prices.usd_per_hour for name in hosts):
        return None
    on_demand = sum(prices.usd_per_hour[name] * count for name, count in hosts.items())
    per_hour = on_demand * (prices.spot_share if spot else 1.0)
    note = f"prices of {prices.region}, {prices.date}"
    if not (is_of_region := prices.hold_in(region)):
        note += f"; those of {region} differ"
    if spot:
        note += f"; spot assumed at {prices.spot_share:.0%} of on demand, and at most all of it"
    return Estimate(per_hour, on_demand * seconds / 3600, note + "; without storage and transfer", is_of_region)


def refresh_prices(region: str, client: Client | None = None) -> Path:
    """Read the prices of ``region`` from AWS's price list and cache them; needs credentials for ``pricing:GetProducts``.

    Args:
        region: AWS region, such as ``eu-west-1``.
        client: A boto3 client of ``pricing``; created when None.

    Returns:
        The file that :func:`load_prices` reads from then on.

    Raises:
        LaunchError: If boto3 is not installed or the list has no price for the region.

    """
    if client is None:
        client = make_client("pricing", _LIST_REGION)
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in (("regionCode", region), ("component", "Training"))
    ]
    found: dict[str, float] = {}
    for page in client.get_paginator("get_products").paginate(ServiceCode="AmazonSageMaker", Filters=filters):
        for text in page["PriceList"]:
            name, price = _price_of(json.loads(text))
            if name in INSTANCES and price:
                found[name] = price
    if not found:
        raise LaunchError(f"The price list has no training prices for {region!r}. HINT: check the region's name.")
    content = {
        "date": date.today().isoformat(),
        "region": region,
        "source": "AWS Price List API",
        "spot_share": load_prices(region).spot_share,
        "usd_per_hour": dict(sorted(found.items())),
    }
    path = refreshed_table(f"prices-{region}")
    write_text(path, json.dumps(content, indent=1))
    return path


def _price_of(product: dict[str, Any]) -> tuple[str, float | None]:
    attributes = product.get("product", {}).get("attributes", {})
    name = attributes.get("instanceName") or attributes.get("instanceType", "")
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            return name, float(dimension["pricePerUnit"]["USD"])
    return name, None


def _parse(table: dict[str, Any]) -> Prices:
    return Prices(
        region=str(table["region"]),
        date=str(table["date"]),
        source=str(table["source"]),
        usd_per_hour={str(name): float(price) for name, price in table["usd_per_hour"].items()},
        spot_share=float(table["spot_share"]),
        same_in=tuple(map(str, table.get("same_in", ()))),
    )
