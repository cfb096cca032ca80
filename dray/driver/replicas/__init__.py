"""The replicas of a job: asked for, watched, judged when they are lost, and replaced."""
