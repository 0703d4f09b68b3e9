"""From a scenario and a seed to a plan: everything that chance decides before the run."""
