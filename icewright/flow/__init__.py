"""The shell: detect, evaluate, plan, execute, record. Talks to ports only."""
