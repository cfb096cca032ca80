"""The requests of a job: how they enter (``ingest``), travel (the spool) and leave (``write_outputs``)."""
