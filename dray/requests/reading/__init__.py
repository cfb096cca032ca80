"""Inputs into rows: files, tables, queries and DataFrames, and what a job finds out about them first."""
