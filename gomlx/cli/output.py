"""How commands show things: messages, tables, colours."""
import contextlib
import dataclasses
import json
import logging
import math
import os
import sys

CODES = {"dim": "2", "bold": "1", "reverse": "7", "red": "31", "green": "32", "cyan": "36"}


def say(text):
    tell("gomlx: " + text + "\n")


def tell(text):
    """To standard error; no work fails because a message cannot be written."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


class Said(logging.Handler):
    """Prints what the library logs as a warning."""

    def __init__(self):
        super().__init__(logging.WARNING)

    def emit(self, record):
        say("warning: " + record.getMessage())


@contextlib.contextmanager
def warnings_said():
    handler, log = Said(), logging.getLogger("gomlx")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def wants_colour():
    """Whether standard output is a terminal that wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text, *names):
    """The text in colours, if standard output wants them."""
    if not text or not wants_colour():
        return text
    return f"\033[{';'.join(CODES[one] for one in names)}m{text}\033[0m"


def json_line(value, ascii_only=True):
    """JSON by RFC 8259: numbers that are not finite become null."""
    try:
        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=ascii_only, allow_nan=False)


def print_json(value):
    """One line of JSON; only UTF-8 carries more than ASCII."""
    print(json_line(value, (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"), flush=True)


def finite(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def result_json(result):
    """A Result as a dict for JSON, with its error as text."""
    made = dataclasses.asdict(dataclasses.replace(result, error=None))
    return made | {"error": f"{type(result.error).__name__}: {result.error}" if result.error is not None else None}


def show_table(values, indent=""):
    """A dict as lines of `name: value`, sub-dicts indented, byte counts readable."""
    width = max(map(len, values), default=0) + 1
    for name, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{name}:")
            show_table(value, indent + "  ")
            continue
        if isinstance(value, list):
            value = ", ".join(json.dumps(one, ensure_ascii=False) if isinstance(one, dict) else str(one)
                              for one in value) or None
        elif name.endswith("bytes") and isinstance(value, int):
            value = size(value)
        print(f"{indent}{name + ':':{width}} {'-' if value is None else value}")


def show_rows(titles, rows):
    """Rows of texts under titles, in columns as wide as their texts; the last one is not padded."""
    lines = [titles, *([("-" if one is None else str(one)) for one in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        print("  ".join([*cells, line[-1]]).rstrip())


def size(count):
    """A number of bytes with a unit: 4.4 MB."""
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"
