"""Ways in for those who would rather pass an object to their framework than decorate a function."""
