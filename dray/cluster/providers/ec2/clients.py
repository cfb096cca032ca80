"""The clients of boto3 that a cluster is asked by."""

from __future__ import annotations

from typing import Any

from dray.cluster.providers.ec2.settings import EC2Settings


def clients_of(settings: EC2Settings) -> tuple[Any, Any]:
    """The clients of EC2 and Systems Manager, with the settings' keys or those that boto3 finds now."""
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "adaptive", "max_attempts": 5},
        connect_timeout=5,
        read_timeout=60,
        user_agent_extra="dray",
    )
    more = {
        "region_name": settings.region,
        "endpoint_url": settings.endpoint,
        "aws_access_key_id": settings.access_key_id,
        "aws_secret_access_key": settings.secret_access_key,
        "config": config,
    }
    session: Any = boto3.session.Session()
    return session.client("ec2", **more), session.client("ssm", **more)
