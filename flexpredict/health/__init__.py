"""Is a run well? Gauges of tensors, and verdicts on the lines that a run has logged."""
