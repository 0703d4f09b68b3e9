"""What is promised, accepted and decided: terms, records, voters, elections, replication."""
