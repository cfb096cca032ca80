"""What can be rented or is at hand, with dated prices, and what hosted APIs charge."""

from dray.planner.catalogue.calibrated import Measured, calibrated
from dray.planner.catalogue.hardware import Device, Instance, Link, Network, Price
from dray.planner.catalogue.hosted import HostedPrice, hosted_prices
from dray.planner.catalogue.loading import Catalogue, load_catalogue, read_catalogue
from dray.planner.catalogue.saved import known_catalogue, save, saved

__all__ = [
    "load_catalogue",
    "read_catalogue",
    "Catalogue",
    "Instance",
    "Device",
    "Link",
    "Network",
    "Price",
    "hosted_prices",
    "HostedPrice",
    "Measured",
    "calibrated",
    "known_catalogue",
    "save",
    "saved",
]
