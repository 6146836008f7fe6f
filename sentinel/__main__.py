"""`python -m sentinel` is the command `sentinel`."""

from sentinel.cli.main import app

if __name__ == "__main__":
    app()
