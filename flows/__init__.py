"""Prefect flows, one per module."""
