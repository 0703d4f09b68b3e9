"""The stores, files and addresses that a job meets at, and the process whose calls may block."""
