"""Drawn calls of the operator, ours against the stock one and against float64."""
