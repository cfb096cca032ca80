"""The store's calls, by what they are about: jobs, shards, results, records, node time."""
