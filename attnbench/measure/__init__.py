"""How numbers are taken: timing, statistics, memory, numerics, roofline, environment."""
