"""Where vLLM has its sockets between an engine's front and its core: killed processes leave none for long."""

from __future__ import annotations

import os
import uuid

from dray.temporary import TemporaryFolder

_VARIABLE = "VLLM_RPC_BASE_PATH"
_LONGEST = 107 - len("/") - 36  # a socket's path on Linux, less the name that vLLM gives it


def meet_in_socket_folder() -> None:
    """Have the ranks that this process starts meet by a file that lies where the sockets do.

    vLLM puts the file into the temporary folder, and one that is killed leaves it there. The file must stay
    while they run: they look into it whenever they form another group.
    """
    from vllm import envs
    from vllm.v1.executor import multiproc_executor, uniproc_executor

    def method() -> str:
        return f"file://{envs.VLLM_RPC_BASE_PATH}/vllm_dist_{uuid.uuid4().hex}"

    for module in (uniproc_executor, multiproc_executor):
        module.get_file_store_init_method = method


class SocketFolder:
    """A folder for one engine's sockets, which its processes find by vLLM's own variable.

    A folder that the user set stays. So does vLLM's own, the temporary folder, where that has a long name.
    """

    def __init__(self) -> None:
        self._folder: TemporaryFolder | None = None
        if _VARIABLE in os.environ:
            return
        folder = TemporaryFolder("dray-zmq-")
        if len(str(folder.path)) > _LONGEST:
            folder.remove()
            return
        self._folder = folder
        os.environ[_VARIABLE] = str(folder.path)

    def remove(self) -> None:
        """Delete it, once both processes have ended; a second call does nothing."""
        if self._folder is None:
            return
        if os.environ.get(_VARIABLE) == str(self._folder.path):
            del os.environ[_VARIABLE]
        self._folder.remove()
        self._folder = None
