"""What is promised, accepted and decided: terms, records, voters, candidates, replication."""
