"""Rows of columns into requests: templates, prompts, messages, and cells of images, sounds and videos."""
