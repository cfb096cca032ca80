"""A chat template is a file, one of vLLM's own, or a text; whatever else a user gives is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.engine.chat_template import template_text, with_template_text
from dray.errors import ConfigError

pytestmark = pytest.mark.unit

TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_a_file_gives_its_text_and_a_text_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat.jinja").write_text(TEXT)
    long = "{# " + "x" * 5000 + " #}" + TEXT  # no system has a path of this length
    monkeypatch.chdir(tmp_path)
    for given in (str(tmp_path / "chat.jinja"), "chat.jinja", TEXT):
        assert template_text(given) == TEXT
    for given in (long, "a/b\n" + TEXT, "\0" + TEXT, "a text\nwithout a brace"):
        assert template_text(given) == given
    assert with_template_text({"chat_template": "chat.jinja", "seed": 1}) == {
        "chat_template": TEXT,
        "seed": 1,
    }
    assert with_template_text({"seed": 1}) == {"seed": 1}


def test_one_of_vllms_own_by_its_name() -> None:
    assert "<|im_start|>" in template_text("template_chatml.jinja")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("chat.jinj", "no file 'chat.jinj' on this machine"),
        ("/nowhere/chat.jinja", "no file"),
        ("../registry.py", "no file"),
        (".", "no file"),
        ("x" * 300, "File name too long"),
        (7, "neither a path nor a text"),
        ("empty.jinja", "holds no template"),
        ("latin.jinja", "not UTF-8"),
    ],
)
def test_what_is_neither_a_file_nor_a_template_is_refused(
    given: object, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.jinja").write_text("hello")
    (tmp_path / "latin.jinja").write_bytes(b"{{ m }}\xff")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told) as caught:
        template_text(given)
    assert "chat_template" in str(caught.value)
