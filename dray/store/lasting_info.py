"""Keys of a job's ``info`` that stay when the job gets other content: they say what lies in its folders.

All others say something of the content itself: its rows, its weights, its engines, what its runs decided.
"""

from __future__ import annotations

IDENTITY = "identity"
"""What tells the job from others of its name; markers in output folders have it."""

OUTPUTS = "outputs"
"""All output folders that its runs have taken."""

OF_OTHERS = "of_others"
"""The output folder that was another's, until the job publishes there."""

UPLOADS = "uploads"
"""The uploads that a driver has begun: its ``epoch``, and ``ids`` by URI."""

LASTING = (IDENTITY, OUTPUTS, OF_OTHERS, UPLOADS)
