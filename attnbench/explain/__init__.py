"""How attention works, with numbers that are computed here: nothing in it is typed in."""
