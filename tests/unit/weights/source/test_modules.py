"""Which files of an embedding model lie in folders of their own."""

from __future__ import annotations

import json

import pytest

from dray.errors import ConfigError, DrayError, WeightsError
from dray.weights.source.modules import module_files

pytestmark = pytest.mark.unit

TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZE = {"idx": 3, "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
FOLDERS = {
    "1_Pooling": {"config.json", "README.md"},
    "2_Dense": {"config.json", "model.safetensors", "pytorch_model.bin"},
}


def _files(modules: object, folders: dict[str, set[str]] | None = None) -> list[str]:
    known = FOLDERS if folders is None else folders
    return module_files("m", json.dumps(modules).encode(), lambda path: known.get(path, set()))


def test_configs_and_safetensors_of_each_folder_that_is_named() -> None:
    wanted = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    assert _files([TRANSFORMER, POOLING, DENSE, NORMALIZE]) == wanted
    assert _files({"modules": [POOLING]}) == ["1_Pooling/config.json"]
    assert _files([TRANSFORMER]) == []


@pytest.mark.parametrize(
    ("modules", "folders", "error", "says"),
    [
        ([POOLING], {}, WeightsError, "m/1_Pooling/config.json: missing, though modules.json names"),
        ([DENSE], {"2_Dense": {"config.json"}}, WeightsError, "m/2_Dense/model.safetensors: missing"),
        ([DENSE], {"2_Dense": {"config.json", "pytorch_model.bin"}}, ConfigError, "m/2_Dense: .* pickle"),
        ([{**POOLING, "path": "../x"}], None, WeightsError, "'../x' is not a folder of this model"),
        ([{**POOLING, "path": "/etc"}], None, WeightsError, "'/etc' is not a folder of this model"),
        ([{**POOLING, "path": "a/.git"}], None, WeightsError, "is not a folder of this model"),
        ([{**POOLING, "path": f"p{n}"} for n in range(65)], None, WeightsError, "65 modules"),
        ({"a": 1}, None, WeightsError, "m/modules.json: no list of modules"),
        ([1], None, WeightsError, "m/modules.json: no list of modules"),
    ],
)
def test_what_an_engine_would_do_without_is_refused(
    modules: object, folders: dict[str, set[str]] | None, error: type[DrayError], says: str
) -> None:
    with pytest.raises(error, match=says):
        _files(modules, folders)
