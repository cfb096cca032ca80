"""A batch job from settings to report, without the orchestrator around it.

Import from its modules: a shard task's process loads those that `dray.shard.task` needs, and no more.
"""
