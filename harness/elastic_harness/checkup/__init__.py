"""The check-up of a script: one run that nothing disturbs, a battery of faults, one report card."""
