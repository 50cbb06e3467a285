"""The operations, each a pure function from facts to a verdict. The tuple is explicit: nothing registers itself."""
