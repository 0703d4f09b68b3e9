"""From a scenario file to a scenario: YAML, schema, and mistakes shown where they stand."""
