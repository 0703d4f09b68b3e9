"""One node's part of a job: when its workers start, stop and start again."""
