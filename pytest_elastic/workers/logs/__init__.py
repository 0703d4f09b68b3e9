"""Where the output of workers goes: files, the console, and what a user's plugin says."""
