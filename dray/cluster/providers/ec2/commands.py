"""A command on an instance, by the agent of Systems Manager, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from dray.cluster.providers.ec2.api import Ec2Api
from dray.errors import ClusterError

_LOOK_SECONDS = 2.0
_END_SECONDS = 60.0  # that a command may still take where its machine was ready at the last moment
_GOES_ON = {"Pending", "InProgress", "Delayed", "Cancelling"}
_LINES, _MOST = 5, 600


def run_there(api: Ec2Api, instance: str, script: str, seconds: float, look: Callable[[], None]) -> None:
    """Run a shell script on an instance that may still boot; ``look`` is called while that is waited for.

    Raises:
        ClusterError: its agent takes no command in ``seconds``, or the script did not end well.
    """
    until = time.monotonic() + seconds
    while (command := api.send_command(instance, script)) is None:
        if time.monotonic() > until:
            raise ClusterError(
                f"{instance}: its agent of Systems Manager did not register in {seconds:.0f} s; the image "
                "needs the agent, the instance profile AmazonSSMManagedInstanceCore, and the subnet a way out"
            )
        look()
        time.sleep(_LOOK_SECONDS)
    until += _END_SECONDS
    while (ran := api.command_on(instance, command)).status in _GOES_ON:
        if time.monotonic() > until:
            break
        look()
        time.sleep(_LOOK_SECONDS)
    if ran.status != "Success":
        said = " / ".join(ran.output.split("\n")[-_LINES:])[-_MOST:]
        raise ClusterError(
            f"{instance}: command {command} of Systems Manager did not succeed ({ran.detail}); it said: "
            f"{said or 'nothing'}"
        )
