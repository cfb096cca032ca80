"""The codes of error rows, each with the HTTP status that a server would have answered.

What makes error rows takes these types, so that mypy finds a code that is not here. docs/error-rows.md says
what each means; a test holds it to this table. 400 is for what the row's author can mend in the row. 500 is
for what came of running it: nothing in its form was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

InvalidRow = Literal[
    "duplicate_custom_id",
    "invalid_audio",
    "invalid_csv",
    "invalid_custom_id",
    "invalid_image",
    "invalid_json",
    "invalid_messages",
    "invalid_method",
    "invalid_text",
    "invalid_value",
    "invalid_video",
    "line_too_long",
    "missing_body",
    "missing_column",
    "missing_custom_id",
    "missing_value",
    "not_an_object",
    "unknown_template_column",
    "unknown_url",
]
"""Found when the input is read; with --skip-invalid they become error rows."""

InvalidRequest = Literal[
    "context_length_exceeded",
    "invalid_json_schema",
    "invalid_request",
    "number_too_large",
    "request_too_large",
    "stream_unsupported",
    "unknown_field",
    "unsupported",
    "unsupported_content",
    "unsupported_field",
]
NotFound = Literal["audio_not_found", "image_not_found", "model_mismatch", "video_not_found"]
Late = Literal["expired"]
Failed = Literal[
    "generation_failed",
    "invalid_response",
    "out_of_memory",
    "poison",
    "response_too_large",
    "simulated_error",
]
ErrorCode = Literal[InvalidRow, InvalidRequest, NotFound, Late, Failed]

JobCode = Literal["mixed_kinds", "model_conflict"]
"""What stands against a job as a whole; never the code of an error row."""

FAILED = 500

STATUS: Mapping[str, int] = {
    **dict.fromkeys(get_args(Literal[InvalidRow, InvalidRequest]), 400),
    **dict.fromkeys(get_args(NotFound), 404),
    **dict.fromkeys(get_args(Late), 408),
    **dict.fromkeys(get_args(Failed), FAILED),
}
