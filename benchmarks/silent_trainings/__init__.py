"""Small trainings, each with an error that no curve shows at once, and healthy twins of them.

Each is a function `training(*, sick)`: healthy if not `sick`. The errors are those of public
reports, each written anew.
"""
