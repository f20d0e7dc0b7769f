"""The experiments of the paper, each by one command: what is run, what it came to, and what that says."""
