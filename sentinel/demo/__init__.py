"""The demo of `sentinel demo` and the drill of `sentinel chaos`, apart from real runs."""
