"""The demo of `sentinel demo`: scenario, sandbox, receiver and report."""
