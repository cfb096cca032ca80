"""Where a model comes from."""

from __future__ import annotations

from dataclasses import dataclass

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from blocks.object_store import ObjectStoreCredentials
from dray.storage import ObjectStoreOptions


@dataclass(frozen=True, kw_only=True)
class ModelPlace:
    """A model's URI or folder, how to reach it, and where its engines' compiled caches are kept."""

    uri: str
    objects: ObjectStoreOptions | None
    bundles: str | None


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
    _documentation_url = HttpUrl("https://github.com/dray-project/dray#models")

    uri: str = Field(
        min_length=1,
        description="s3://, gs://, az://, https:// or hf:// address of the model, or a folder on every node.",
    )
    credentials: ObjectStoreCredentials | None = Field(
        default=None, description="How to reach it; the job's object-store credentials when left out."
    )
    bundles: str | None = Field(
        default=None,
        description="Folder or URI where what engines compile is kept for the next ones. Whoever may write "
        "there can run code in the replicas.",
    )

    def settings(self) -> ModelPlace:
        """The frozen form."""
        objects = self.credentials.settings() if self.credentials is not None else None
        return ModelPlace(uri=self.uri, objects=objects, bundles=self.bundles)
