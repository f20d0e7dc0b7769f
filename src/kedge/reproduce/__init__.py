"""The experiments of the paper, one command each: what is run, the results, and what they say."""
