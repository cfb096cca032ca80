"""Ray clusters in Kubernetes: a ``RayCluster`` object, from which KubeRay makes pods.

Why dray sets how many workers there are, and not Ray's autoscaler: the driver knows how many replicas pay and
whether the deadline has time to wait for spot. The autoscaler sees replicas that wait for a place, and starts
whatever group comes first. Machines below the pods are the business of Karpenter or a cluster autoscaler.
"""

from dray.cluster.providers.kuberay.cluster import KubeRayCluster

__all__ = ["KubeRayCluster"]
