"""Which Ray cluster a job runs on."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from blocks.pasted import PASTED
from dray.cluster import ClusterSettings


class LocalRayCluster(Block):
    """A Ray cluster of its own on the machine that runs the flow, for the time of one job.

    Example:
        ```python
        from blocks import LocalRayCluster

        settings = LocalRayCluster.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray Local Ray Cluster"
    _block_type_slug = "dray-local-ray-cluster"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/clusters.md")

    num_cpus: float | None = Field(
        default=None, gt=0, description="CPUs to offer; all of the machine's when left out."
    )
    num_gpus: float | None = Field(
        default=None, ge=0, description="GPUs to offer; all of the machine's when left out."
    )

    def settings(self) -> ClusterSettings:
        """The frozen form."""
        return ClusterSettings(num_cpus=self.num_cpus, num_gpus=self.num_gpus)


class ExistingRayCluster(Block):
    """A Ray cluster that runs already and goes on running after the job.

    Example:
        ```python
        from blocks import ExistingRayCluster

        settings = ExistingRayCluster.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray Existing Ray Cluster"
    _block_type_slug = "dray-existing-ray-cluster"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/clusters.md")

    model_config = PASTED

    address: str = Field(
        min_length=1,
        description="Address of the head, for example 10.0.0.5:6379, or auto on a node of the cluster.",
    )
    auth_token: SecretStr | None = Field(
        default=None, description="The cluster's authentication token, where it has one."
    )

    def settings(self) -> ClusterSettings:
        """The frozen form."""
        token = self.auth_token.get_secret_value() if self.auth_token is not None else None
        return ClusterSettings(address=self.address, auth_token=token)
