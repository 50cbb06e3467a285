"""The demo: a lakehouse made on the spot, rotten on purpose."""
