"""The functions of a user's flow: where they are called, what they reach, whether they are pure."""
