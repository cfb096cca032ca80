"""Where a model comes from."""

from __future__ import annotations

from prefect import get_run_logger
from prefect.blocks.core import Block
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger
from pydantic import Field, HttpUrl

from blocks.object_store import ObjectStoreCredentials
from blocks.pasted import PASTED
from dray.job.options.resolving import ModelPlace


class ModelSource(Block):
    """A model in an object store, with its own credentials.

    Example:
        ```python
        from blocks import ModelSource

        place = ModelSource.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray Model Source"
    _block_type_slug = "dray-model-source"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/weights.md")

    model_config = PASTED

    uri: str = Field(
        min_length=1,
        description="s3://, gs://, az://, https:// or hf:// address of the model, or a folder on every node.",
    )
    credentials: ObjectStoreCredentials | None = Field(
        default=None, description="How to reach it; the job's object-store credentials when left out."
    )

    def settings(self) -> ModelPlace:
        """The frozen form."""
        if (self.model_extra or {}).get("bundles"):  # saved by an earlier version of dray
            _warn(_NO_BUNDLES)
        objects = self.credentials.settings() if self.credentials is not None else None
        return ModelPlace(uri=self.uri, objects=objects)


_NO_BUNDLES = (
    "the field `bundles` of this dray-model-source block is ignored: dray no longer keeps what engines "
    "compile. vLLM does, on the volume that VLLM_CACHE_ROOT names (docs/weights.md). Save the block again "
    "without the field"
)


def _warn(message: str) -> None:
    """Into the log of the run, where there is one."""
    try:
        get_run_logger().warning(message)
    except MissingContextError:
        get_logger(__name__).warning(message)
