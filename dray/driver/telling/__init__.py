"""What people and other programs hear of a job while it runs."""
