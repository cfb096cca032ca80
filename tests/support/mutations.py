"""Fields of bodies with values that their authors did not mean, for fuzz tests of pooling models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

_NUMBERS = st.sampled_from([-1, 0, 1, 5, 2**31, 2**40, 0.5, 1e300])
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=4))
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


def mutations(fields: Sequence[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Up to six dictionaries, each of one to three of the fields."""
    one = st.dictionaries(st.sampled_from(fields), _VALUES, min_size=1, max_size=3)
    return st.lists(one, max_size=6)
