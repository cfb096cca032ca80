"""Images, sounds and videos of a request: their forms, where they stand, and what a row may say of them."""
