"""The seed of an engine: each replica draws its own random numbers. Imports no engine.

vLLM draws for rows that have no seed of their own from its engine's seed. With the same one, the replicas of
a job would draw alike: equal prompts on them would get copies of one answer.
"""

from __future__ import annotations

import hashlib
from typing import Any

_MOST = (1 << 31) - 1  # NumPy and Torch take larger seeds, but not every device's library


def own_seed(given: Any, replica: str) -> Any:
    """``given``, the job's seed, mixed with the replica's name: no two replicas of a job have the same.

    All ranks of one engine get the same, and so does the same job when it runs anew elsewhere. What is no
    whole number stays, for vLLM to refuse; so does the seed of an engine that belongs to no replica.
    """
    if not replica or not isinstance(given, int) or isinstance(given, bool):
        return given
    digest = hashlib.blake2b(f"{given} {replica}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & _MOST
