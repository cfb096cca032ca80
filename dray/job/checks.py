"""What is refused before an engine starts: by the command line at once, and by a job when it is opened."""

from __future__ import annotations

from dray.engine.argument_policy import refuse_spread, refuse_unsafe
from dray.engine.chat_template import with_template_text
from dray.job.model_files import checked_weights, refuse_misfit
from dray.job.settings import JobSettings
from dray.weights import Manifest


def check_arguments(settings: JobSettings, *, local: bool = False) -> None:
    """Refuse arguments that the engine would not take, or that dray does not pass on.

    ``local``: the engines are of this machine's vLLM, whose arguments are known; a cluster has its own.

    Raises:
        ConfigError: names the argument.
    """
    arguments = settings.engine_arguments
    if settings.engine == "simulated":
        from dray.engine.simulated import SimulatedSettings

        SimulatedSettings.parse(dict(arguments))
        return
    refuse_unsafe(arguments)
    refuse_spread(arguments)
    with_template_text(arguments)  # the driver reads it, for replicas on any node
    if local:
        from dray.engine.declared import refuse_arguments

        refuse_arguments(arguments)


def check_weights(settings: JobSettings) -> Manifest | None:
    """Refuse a model that the engine could not load; returns the state of one in an object store.

    Raises:
        ConfigError: the model, or an argument that does not go with it, cannot be used.
    """
    if settings.engine == "simulated":
        return None
    weights = checked_weights(settings.model, settings.model_access, dummy_weights=settings.has_dummy_weights)
    refuse_misfit(settings.model, settings.engine_arguments)
    return weights
