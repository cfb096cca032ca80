"""How many replicas a job is to have, on which machines, and for which money."""
