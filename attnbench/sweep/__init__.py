"""From a sweep to records: grid, plan, workers, runner."""
