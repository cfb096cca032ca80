"""Blocks as they are saved in Prefect, whose server takes any values for their fields."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import BlockDocumentCreate
from pydantic import SecretStr

from blocks import EC2RayCluster, ResultStore
from dray.errors import ConfigError
from flows.resolving import PrefectBlocks
from tests.support.command import CANARY

pytestmark = pytest.mark.integration


def save(block: type[Block], name: str, **values: Any) -> None:
    """As the page of the block does, and Prefect's API: nothing looks at the values."""
    block.register_type_and_schema()
    assert block._block_type_id is not None
    assert block._block_schema_id is not None
    with get_client(sync_client=True) as client:
        client.create_block_document(
            BlockDocumentCreate(
                name=name,
                data=values,
                block_type_id=block._block_type_id,
                block_schema_id=block._block_schema_id,
            )
        )


def test_a_block_that_cannot_be_used_names_its_fields_and_shows_no_secret() -> None:
    save(EC2RayCluster, "half", region="us-east-1", secret_access_key=CANARY, workers=5000)
    with pytest.raises(
        ConfigError, match=r"dray-ec2-ray-cluster/half cannot be used: .*image: .*required"
    ) as told:
        PrefectBlocks().cluster("dray-ec2-ray-cluster/half")
    assert "workers: Input should be less than or equal to 1000" in str(told.value)
    assert CANARY not in "".join(traceback.format_exception(told.value))  # as Prefect logs it


def test_a_block_is_found_by_its_name_and_as_prefect_shows_it() -> None:
    ResultStore(url=SecretStr("sqlite:////data/dray.db")).save("shown", overwrite=True)
    blocks = PrefectBlocks()
    assert (
        blocks.store_url("shown") == blocks.store_url("dray-result-store/shown") == "sqlite:////data/dray.db"
    )
