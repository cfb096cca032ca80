"""What the GPU's benchmark is asked, and how its engines share the memory."""

from __future__ import annotations

import pytest

from tests.benchmarks.gpu import cache_bytes, parse
from tests.support.shaped_model import SHAPES

pytestmark = pytest.mark.unit

H100 = 80 << 30


def test_rows_are_said_by_shape_and_for_the_rest() -> None:
    assert parse([]).rows == {"1b": 8_000, "8b": 2_000}
    assert parse(["--rows", "100", "8b=30"]).rows == {"1b": 100, "8b": 30}


@pytest.mark.parametrize("said", ["2b=10", "1b=", "1b=many", "0"])
def test_rows_of_no_shape_and_no_number_are_refused(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--rows", said])
    assert f"{said!r} is neither a number" in capsys.readouterr().err


def test_engines_that_are_up_together_fit_into_the_memory() -> None:
    shapes = ["1b", "1b", "1b", "8b", "8b"]
    alone, together = cache_bytes(["8b"], H100), cache_bytes(shapes, H100)
    assert 0 < together["8b"] < alone["8b"]
    assert sum(together[shape] + 2 * SHAPES[shape].parameters for shape in shapes) < H100
