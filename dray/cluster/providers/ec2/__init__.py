"""Clusters of EC2 instances: a head on demand, and workers from EC2 Fleet, spot first.

Why EC2 Fleet, and not Ray's cluster launcher with its autoscaler: the launcher asks for one type in one zone
per call, and never for prices. Its loop runs on the head, so what it started outlives a head that dies. A
fleet of type ``instant`` is one call with many types and zones, its answer says what came and what did not,
and it leaves nothing behind that acts by itself. So dray alone starts machines here, and their tags end them.
"""

from dray.cluster.providers.ec2.cluster import EC2Cluster

__all__ = ["EC2Cluster"]
