"""How type checkers see the flow. None of it runs: mypy reads it, and refuses an ignore without a cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.awaited import abatch_inference
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions

if TYPE_CHECKING:
    batch_inference("in.csv", "m", "out")
    batch_inference(
        "in.csv", "m", "out", prompt_column="text", engine=EngineOptions(arguments={"dtype": "half"})
    )
    batch_inference(input=["in.csv"], model="m", output="out", max_tokens=64, temperature=0, resume=True)

    batch_inference("in.csv", "m")  # type: ignore[call-overload]  # no output
    batch_inference("in.csv", "m", "out", max_tokens="64")  # type: ignore[call-overload]
    batch_inference("in.csv", "m", "out", format="xml")  # type: ignore[call-overload]
    batch_inference("in.csv", "m", "out", no_such_option=1)  # type: ignore[call-overload]

    batch_inference("in.csv", "m", "out").counts.get("done")

    async def awaited() -> None:
        (await abatch_inference("in.csv", "m", "out", max_tokens=64)).counts.get("done")
        await abatch_inference("in.csv", "m", "out", no_such_option=1)  # type: ignore[call-arg]
