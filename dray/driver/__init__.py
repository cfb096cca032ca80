"""The driver of a job: where it is steered. ``run.py`` is the loop, and reads as its table of contents."""
