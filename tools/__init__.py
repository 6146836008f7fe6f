"""Tools of the development of sentinel, which are not in its wheel."""
