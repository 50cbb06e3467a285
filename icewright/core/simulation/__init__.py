"""The same verdicts and the same plan over a made-up or recorded fleet, under a virtual clock."""
