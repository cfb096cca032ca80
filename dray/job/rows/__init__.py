"""The rows of a job: read into its spool, put in order, cut into shards, and those that need no engine."""
