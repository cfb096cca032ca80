"""Processes forked from one that has imported everything already."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """Fork a process that does ``work``, and nothing of its parent's after it; its pid.

    Its exit code is 0 if ``work`` returned, and 1 if ``work`` raised: then stderr has the traceback.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  the end of a process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
