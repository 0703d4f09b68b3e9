"""The machine that fires faults and judges clauses while a job runs. Pure."""
