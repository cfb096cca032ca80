"""A batch job from settings to report, without the orchestrator around it.

Import from its modules: a shard's worker process loads `dray.shard.pump` and nothing of the report.
"""
