"""A Ray cluster in Kubernetes, made by KubeRay for one job."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from blocks.cluster_numbers import number
from blocks.pasted import PASTED
from dray.cluster import ClusterSettings
from dray.cluster.providers.kuberay import KubeRayCluster as Settings
from dray.cluster.providers.kuberay.settings import BOUNDS

_number = partial(number, Settings, BOUNDS)


class KubeRayCluster(Block):
    """A Ray cluster in Kubernetes, made by KubeRay for the time of one job: spot first.

    Example:
        ```python
        from blocks import KubeRayCluster

        settings = KubeRayCluster.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray KubeRay Cluster"
    _block_type_slug = "dray-kuberay-cluster"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/clusters.md")

    model_config = PASTED

    image: str = Field(description="Image with dray, and the Ray and Python of the driver.")
    name: str = Field(default="dray", description="Beginning of the RayCluster's name.")
    namespace: str = Field(default="default", description="Namespace of Kubernetes.")
    context: str | None = Field(
        default=None, description="Context of the kubeconfig; the current one, or the pod's own account."
    )
    kubeconfig: str | None = Field(
        default=None, description="Path of a kubeconfig; the usual one if left out."
    )
    workers: int = _number("workers", "Pods with engines to ask for.")
    minimum: int = _number("minimum", "Pods with engines that have to come.")
    cpus: float = _number("cpus", "Processors of a worker.")
    memory: str = Field(default="32Gi", description="Memory of a worker.")
    gpus: int = _number("gpus", "GPUs of a worker.")
    gpu_resource: str = Field(default="nvidia.com/gpu", description="The device plugin's name for a GPU.")
    shared_memory: str = Field(default="16Gi", description="Volume in memory of a worker, for weights.")
    head_cpus: float = _number("head_cpus", "Processors of the head.")
    head_memory: str = Field(default="16Gi", description="Memory of the head.")
    spot: bool = Field(default=True, description="Allow spot nodes.")
    on_demand: bool = Field(default=True, description="Allow workers on demand, where no spot can be had.")
    spot_selector: dict[str, str] = Field(
        default={"karpenter.sh/capacity-type": "spot"}, description="Labels of spot nodes."
    )
    on_demand_selector: dict[str, str] = Field(
        default={"karpenter.sh/capacity-type": "on-demand"},
        description="Labels of nodes on demand, also the head's; none ({}) on GKE.",
    )
    tolerations: list[str] = Field(default=["nvidia.com/gpu"], description="Keys of taints to tolerate.")
    instance_type: str | None = Field(
        default=None, description="Type of the workers' nodes, by which the bill finds a price."
    )
    service_account: str = Field(default="dray", description="Service account of the pods.")
    image_pull_secrets: list[str] = Field(default=[], description="Secrets to pull the image with.")
    env_secrets: list[str] = Field(
        default=[], description="Secrets of the namespace whose keys become variables of head and workers."
    )
    queue: str | None = Field(default=None, description="Local queue of Kueue.")
    lifetime: float = _number(
        "lifetime", "Seconds after which the cluster deletes itself when no job puts that off."
    )
    start_seconds: float = _number("start_seconds", "Seconds that the head has to be ready.")
    join_seconds: float = _number("join_seconds", "Seconds that the minimum of workers has.")
    spot_seconds: float = _number(
        "spot_seconds", "Seconds that a pod waits for spot before one on demand is asked for."
    )
    grace_seconds: int = _number("grace_seconds", "Seconds that a pod has to end.")
    python: str = Field(default="python", description="Python on the image that has dray.")
    port: int = _number("port", "Port of Ray's head.")

    def settings(self) -> ClusterSettings:
        """The frozen form."""
        values = self.model_dump(include={one.name for one in fields(Settings)})
        lists = {
            "tolerations": tuple(self.tolerations),
            "image_pull_secrets": tuple(self.image_pull_secrets),
            "env_secrets": tuple(self.env_secrets),
        }
        return ClusterSettings(provider=Settings(**{**values, **lists}))
