"""`python -m icewright`."""

from icewright.app.cli import main

main()
