"""Simulation: the product's verdicts and plans over a generated or recorded fleet, under a virtual clock."""
