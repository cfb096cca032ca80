"""Where results and checkpoints are kept."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from blocks.pasted import PASTED


class ResultStore(Block):
    """The SQL database of results and checkpoints.

    Example:
        ```python
        from blocks import ResultStore

        url = ResultStore.load("BLOCK_NAME").settings()
        ```
    """

    _block_type_name = "dray Result Store"
    _block_type_slug = "dray-result-store"
    _documentation_url = HttpUrl("https://github.com/dray-project/dray/blob/main/docs/jobs.md")

    model_config = PASTED

    url: SecretStr = Field(
        min_length=1,
        description="SQLAlchemy URL, for example postgresql://user:password@host/dray or sqlite:////data/dray.db.",
    )

    def settings(self) -> str:
        """The store's URL."""
        return self.url.get_secret_value()
