"""The order in which a job's rows should run, so that engines compute less and the last row is not late."""

from dray.planner.order.depth_first import depth_first
from dray.planner.order.groups import Order, order_rows

__all__ = ["Order", "depth_first", "order_rows"]
