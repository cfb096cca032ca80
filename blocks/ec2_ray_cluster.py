"""A Ray cluster of EC2 instances, rented for one job."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from blocks.cluster_numbers import number
from blocks.pasted import PASTED
from dray.cluster import ClusterSettings
from dray.cluster.providers.ec2 import EC2Cluster
from dray.cluster.providers.ec2.settings import BOUNDS

_number = partial(number, EC2Cluster, BOUNDS)


class EC2RayCluster(Block):
    """A Ray cluster of EC2 instances, rented for the time of one job: spot first, across types and zones.

    Example:
        ```python
        from blocks import EC2RayCluster

        settings = EC2RayCluster.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray EC2 Ray Cluster"
    _block_type_slug = "dray-ec2-ray-cluster"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/clusters.md")

    model_config = PASTED

    region: str = Field(description="Region, for example us-east-1.")
    subnets: list[str] = Field(min_length=1, description="Private subnets, one in each zone to choose from.")
    security_group: str = Field(description="Security group whose members reach each other.")
    instance_profile: str = Field(description="Instance profile of the nodes.")
    image: str = Field(description="AMI with dray and its Ray.")
    name: str = Field(default="dray", description="Beginning of the cluster's name in tags.")
    head_type: str = Field(default="m7i.xlarge", description="Instance type of the head, on demand.")
    instance_types: list[str] = Field(
        default=[],
        description="Instance types of workers to choose from; all of dray's catalogue when left out.",
    )
    workers: int = _number("workers", "Workers to ask for.")
    minimum: int = _number("minimum", "Workers that have to come.")
    spot: bool = Field(default=True, description="Allow spot instances.")
    on_demand: bool = Field(
        default=True, description="Allow workers on demand, where they are cheaper or no spot can be had."
    )
    model: str | None = Field(
        default=None,
        description="Folder or URI of the model to compare types by; one of 8B parameters when left out.",
    )
    input_tokens: float = _number("input_tokens", "Tokens of a usual prompt, to compare types by.")
    output_tokens: float = _number("output_tokens", "Tokens of a usual answer, to compare types by.")
    tensor_parallel_size: int = _number(
        "tensor_parallel_size", "The engine's, to compare types by; a job's own comes first."
    )
    pipeline_parallel_size: int = _number(
        "pipeline_parallel_size", "The engine's, to compare types by; a job's own comes first."
    )
    nnodes: int = _number("nnodes", "The engine's, to compare types by; a job's own comes first.")
    quantization: str | None = Field(
        default=None, description="The engine's, to compare types by; a job's own comes first."
    )
    lifetime: float = _number(
        "lifetime", "Seconds after which machines end by themselves when no job puts that off."
    )
    start_seconds: float = _number("start_seconds", "Seconds that the head has to answer.")
    join_seconds: float = _number("join_seconds", "Seconds that the minimum of workers has to join Ray.")
    disk_gb: int = _number("disk_gb", "Gigabytes of each machine's disk.")
    root_device: str = Field(
        default="/dev/xvda", description="Root device of the image; Ubuntu's is /dev/sda1."
    )
    port: int = _number("port", "Port of Ray's head.")
    env_parameters: dict[str, str] = Field(
        default={},
        description="Variables of all nodes, each with the Systems Manager parameter that has it.",
    )
    endpoint: str | None = Field(default=None, description="API other than AWS's own.")
    python: str = Field(default="/opt/dray/bin/python", description="Python on the image that has dray.")
    access_key_id: str | None = Field(
        default=None, description="AWS access key id; the environment's when left out."
    )
    secret_access_key: SecretStr | None = Field(default=None, description="AWS secret access key.")

    def settings(self) -> ClusterSettings:
        """The frozen form."""
        values = self.model_dump(include={one.name for one in fields(EC2Cluster)})
        secret = self.secret_access_key.get_secret_value() if self.secret_access_key is not None else None
        lists = {"subnets": tuple(self.subnets), "instance_types": tuple(self.instance_types)}
        return ClusterSettings(provider=EC2Cluster(**{**values, **lists, "secret_access_key": secret}))
