"""The shard tasks of a job: which run, how many at a time, and which stand still."""
