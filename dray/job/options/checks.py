"""What is refused before an engine starts: by the command line at once, and by a job when it is opened."""

from __future__ import annotations

from dray.engine.adapters import ARGUMENT as ADAPTERS
from dray.engine.adapters import adapters_of, rank_for
from dray.engine.argument_policy import refuse_spread, refuse_traces, refuse_unsafe
from dray.engine.body_fields import refuse_param_unread_by_harmony
from dray.engine.chat_template import HARMONY, with_template_text
from dray.engine.decoders import refuse_without_libraries
from dray.engine.ranks import refuse_on_this_machine
from dray.engine.weight_formats import formats_of, refuse_left_out
from dray.errors import ConfigError
from dray.job.options.model_files import checked_weights, context_of, family_of, refuse_misfit
from dray.job.options.settings import JobSettings
from dray.kinds import LENGTH_FIELDS
from dray.requests.media.medium import MEDIA, MediaRoot, Medium
from dray.requests.reading.inputs import pattern_for
from dray.requests.sources import SqlQuery
from dray.storage.files import exists, join, local_path
from dray.storage.folders import owner_of
from dray.storage.layout import part_name, whole_name
from dray.storage.listings import list_under
from dray.storage.objects import is_object, is_web
from dray.weights import Manifest


def check_arguments(settings: JobSettings, *, local: bool = False) -> None:
    """Refuse arguments that the engine would not take, or that dray does not pass on, and unknown fields.

    ``local``: the engines are of this machine's vLLM, whose arguments are known; a cluster has its own.

    Raises:
        ConfigError: names the argument or the field; or there is a budget without a price.
    """
    arguments = settings.engine_arguments
    if local and settings.request.budget is not None and settings.request.price is None:
        from dray.job.pricing import UNPRICED  # with the catalogue

        raise ConfigError(UNPRICED)  # Ray on this machine is told no type of instance: there is no list price
    if local:
        from dray.engine.body_fields import refuse_unknown_fields

        refuse_unknown_fields(settings.defaults.sampling)
    if settings.engine == "simulated":
        from dray.engine.simulated import SimulatedSettings

        if arguments.get(ADAPTERS) is not None:
            raise ConfigError(
                f"engine argument {ADAPTERS}: the simulated engine has no adapters; leave it out"
            )
        SimulatedSettings.parse(dict(arguments))
        if local:
            refuse_on_this_machine(arguments)
        return
    refuse_unsafe(arguments)
    refuse_spread(arguments)
    refuse_traces(arguments)
    if local:
        refuse_on_this_machine(arguments)
    with_template_text(arguments)  # the driver reads it, for replicas on any node
    adapters = adapters_of(arguments, settings.model, all_here=local)
    if local:
        from dray.engine.declared import choices_of, refuse_arguments

        refuse_arguments(arguments)
        if adapters:
            rank_for(adapters, arguments, choices_of("vllm.config.lora", "MaxLoRARanks"))
        # Rows that hold their files are not read yet: the replica looks, too.
        refuse_without_libraries(settings.media)


def check_weights(settings: JobSettings) -> Manifest | None:
    """Refuse a model that the engine could not load; returns the state of one in an object store.

    Raises:
        ConfigError: the model, or an option that does not go with it, cannot be used.
    """
    if settings.engine == "simulated":
        return None
    weights = checked_weights(settings.model, settings.model_access, dummy_weights=settings.has_dummy_weights)
    refuse_misfit(settings.model, settings.engine_arguments)
    if weights is None:
        formats_of(settings.model, settings.engine_arguments)
    else:
        refuse_left_out(weights, settings.engine_arguments)
    if family_of(settings.model) == HARMONY and "hf_overrides" not in settings.engine_arguments:
        refuse_param_unread_by_harmony(settings.defaults.sampling)
    _refuse_long_answers(settings)
    return weights


def check_inputs(settings: JobSettings) -> None:
    """Refuse a pattern that the job's own files would match: its next run would read them as rows.

    A job that was begun so goes on, until its files are there.

    Raises:
        ConfigError: names the pattern and the file.
    """
    source, output = settings.source, settings.output
    if isinstance(source, SqlQuery):
        return
    for stem in ("output", "errors"):
        for name in (whole_name(stem, settings.format), part_name(stem, 0, settings.format)):
            uri = join(output, name)
            pattern = pattern_for(uri, source.inputs)
            if pattern is None:
                continue
            if exists(uri, options=settings.objects) or owner_of(output, settings.objects) is None:
                raise ConfigError(
                    f"{pattern}: the pattern also matches {uri}, which this job writes, so the same command "
                    "could not go on with the job; name another output folder, or a narrower pattern"
                )


def check_media(settings: JobSettings) -> None:
    """Refuse a root of files that is not there, or cannot be read.

    Raises:
        ConfigError: says which.
    """
    for medium in MEDIA:
        root = settings.media_roots.get(medium.root)
        if root is not None:
            _check_root(medium, root, settings)


def _check_root(medium: Medium, root: str, settings: JobSettings) -> None:
    MediaRoot(medium, root)
    if is_web(root):
        return
    if not is_object(root):
        if not local_path(root).is_dir():
            raise ConfigError(f"{medium.root} {root}: there is no such folder on this machine")
        if next(local_path(root).iterdir(), None) is None:
            raise ConfigError(f"{medium.root} {root}: the folder is empty; is it mounted?")
        return
    try:
        first = next(list_under(f"{root.rstrip('/')}/", settings.rows_access), None)
    except PermissionError:
        return  # objects may be read that may not be listed
    except OSError as error:
        raise ConfigError(f"{medium.root} {root}: its objects cannot be listed ({error})") from error
    if first is None:
        raise ConfigError(f"{medium.root} {root}: there are no objects below it")


def _refuse_long_answers(settings: JobSettings) -> None:
    """``--max-tokens`` beyond the context: each row that sets no length itself would be an error row.

    A context that the engine works out, and that of a model elsewhere, are not known yet.
    """
    length = context_of(settings.model, settings.engine_arguments)
    for name in LENGTH_FIELDS:
        wanted = settings.defaults.sampling.get(name)
        if length is None or settings.request.overflow == "shorten" or not isinstance(wanted, int):
            continue
        if wanted > length:
            raise ConfigError(
                f"{name} {wanted:,} is more than the context of {length:,} tokens, so each row would be an "
                f"error row (context_length_exceeded); give at most {length:,}, or --overflow shorten"
            )
