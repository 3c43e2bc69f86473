"""What a run and a result write about themselves."""
