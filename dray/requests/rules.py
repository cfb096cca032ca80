"""Rules over all rows of a job: one model, and one kind of engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.codes import JobCode
from dray.kinds import KINDS, Kind
from dray.requests.rejects import Reject

_NAME_SHOWN = 100


class JobRules:
    """Sees every request once, and remembers the first contradiction of each sort."""

    def __init__(self, names: Sequence[str], model_name: str | None) -> None:
        self.model_name = model_name
        self.urls: dict[str, tuple[int, int]] = {}
        self.broken: dict[str, Reject] = {}
        self._names = names
        # With a name given, a row that names another is the engine's to refuse, alone.
        self._open = model_name is None
        self._model_place = (0, 0)

    def check(self, index: int, file_no: int, line_no: int, url: str, body: dict[str, Any]) -> None:
        """Take note of one request."""
        if url not in self.urls:
            self._new_url(index, file_no, line_no, url)
        if self._open:
            model = body.get("model")
            if model != self.model_name and type(model) is str:
                self._new_model(index, file_no, line_no, model)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds seen."""
        return frozenset(kind for url in self.urls if (kind := Kind.of_url(url)) is not None)

    def _new_model(self, index: int, file_no: int, line_no: int, model: str) -> None:
        if self.model_name is None:
            self.model_name, self._model_place = model, (file_no, line_no)
            return
        self._contradiction(
            "model_conflict",
            f"the row names the model {model[:_NAME_SHOWN]!r}, {self._at(self._model_place)} names "
            f"{self.model_name[:_NAME_SHOWN]!r}; one job runs one model: part the input, or set --model-name",
            "body.model",
            (index, file_no, line_no),
        )

    def _new_url(self, index: int, file_no: int, line_no: int, url: str) -> None:
        for other, place in self.urls.items():
            if KINDS[url].engine != KINDS[other].engine:
                self._contradiction(
                    "mixed_kinds",
                    f"the row asks {url}, {self._at(place)} asks {other}; "
                    "one engine cannot do both: part the input",
                    "url",
                    (index, file_no, line_no),
                )
        self.urls[url] = (file_no, line_no)

    def _contradiction(self, code: JobCode, message: str, field: str, place: tuple[int, int, int]) -> None:
        index, file_no, line_no = place
        reject = Reject(
            index=index,
            custom_id=None,
            file_no=file_no,
            line_no=line_no,
            code=code,
            message=message,
            field=field,
        )
        self.broken.setdefault(code, reject)

    def _at(self, place: tuple[int, int]) -> str:
        return f"{self._names[place[0]]}:{place[1]}"
