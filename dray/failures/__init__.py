"""Failures: what an error says, and what follows from it for the request, the shard and the job."""
