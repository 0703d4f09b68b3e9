"""Random fault schedules: drawn from a seed, carried out, and judged."""
