"""What a user asks for: read, completed, held against the model, and frozen."""
