"""The demo: creates a lakehouse of neglected tables and maintains it."""
