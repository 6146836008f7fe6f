"""What `sentinel demo` is made of: its course, its stage, its receiver and what it shows."""
