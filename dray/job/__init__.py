"""A batch job from settings to report, without the orchestrator around it.

Import from its modules: a shard's worker process loads `dray.job.shard` and nothing of the report.
"""
