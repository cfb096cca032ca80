"""The requests that a job keeps: files of JSON lines, cut into the byte ranges that shards are."""
