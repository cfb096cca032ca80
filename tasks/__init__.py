"""Prefect tasks, one module per step. They call dray, and map its errors to retries and states."""
