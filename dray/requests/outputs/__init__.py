"""Outcomes into the files that the user keeps, beside columns of the input."""
