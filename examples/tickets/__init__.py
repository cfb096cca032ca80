"""Support tickets: a small model, its training, and a batch of requests with known answers."""
