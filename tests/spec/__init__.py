"""The numbered rules, one test each, and the transcripts that show them."""
