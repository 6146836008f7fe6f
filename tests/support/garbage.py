"""Scripts whose garbage is seldom collected."""


def with_less_collection(script: str) -> str:
    """That script; a blank first line is replaced, so that the numbers of the others remain.

    Else the interpreter examines the objects of torch again and again while they are imported, and
    once more at its exit, however the script ends: together that takes a second.
    """
    lines = [
        "import atexit, gc; gc.set_threshold(50_000, 20, 20); atexit.register(gc.freeze)",
        script.removeprefix("\n"),
        "",
    ]
    return "\n".join(lines)
