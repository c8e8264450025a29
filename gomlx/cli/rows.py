"""What the commands that go over rows of files share: their options, and the run over what is not there yet."""
import contextlib
import itertools
import sys

from gomlx._base import bars
from gomlx._batches import journal, requests, shards
from gomlx._batches.inputs import Inputs
from gomlx.cli import options
from gomlx.cli.output import json_line, say


def add_options(made, lines):
    """lines: what a line of a file is that is neither JSON lines nor a table."""
    made.add_argument("file", nargs="+", metavar="FILE",
                      help=f"{lines}; *.jsonl, *.csv or *.parquet by its columns; - reads standard input")
    made.add_argument("-o", "--output", metavar="OUT.jsonl",
                      help="write a row for each one there, in order; until all are there, they are in OUT.jsonl.part")
    made.add_argument("--resume", action="store_true",
                      help="go on with OUT.jsonl after an interruption: rows that are there are not computed again")
    made.add_argument("--retry-errors", action="store_true", help="with --resume, compute rows with an error again")
    made.add_argument("--max-errors", type=int, metavar="N", help="end when more than N rows have an error "
                      "(default: each is a row of the result with \"error\")")
    made.add_argument("--shard", metavar="I/N", help="every N-th row from row I (from 0) on, into OUT.I-of-N.jsonl; "
                      "auto: as SLURM's array says; auto/N: as a Kubernetes job's index says")


class Printed:
    """Rows that go to standard output; nothing is there before."""

    def __init__(self, show):
        self._show, self.failed = show, set()

    def found(self, key, file, line):
        return None

    def add(self, row):
        if row["error"] is not None:
            self.failed.add(journal.key_of(journal.row_name(row), row["file"], row["line"]))
        self._show(row)


class Run:
    """The rows of a command that are asked, and where their results go. urls: of OpenAI's rows; show: of a row, where
    there is no -o."""

    def __init__(self, args, wants, lines_are, urls=(), show=None):
        self.args, self._wants, self._urls = args, wants, urls
        self.shard = shards.parse(args.shard)
        self._inputs = Inputs(args.file, self.shard, lines_are)
        for name in ("resume", "retry_errors"):
            if getattr(args, name) and args.output is None:
                raise ValueError(f"--{name.replace('_', '-')}: expected -o FILE, whose rows are not computed again")
        if args.retry_errors and not args.resume:
            raise ValueError("--retry-errors: expected --resume")
        if args.output is not None and not args.output.endswith(".jsonl"):
            raise ValueError(f"-o {args.output}: rows are appended to JSON lines, expected *.jsonl; `gomlx merge` "
                             "makes CSV and Parquet of it")
        self.known = self._survey()
        self.late = 0
        self.out = Printed(show) if args.output is None else journal.Journal(
            self.shard.path(args.output), args.resume, lambda row: json_line(row).encode() + b"\n")

    def requests(self):
        """Of all rows, read again each time."""
        return (requests.read(self._inputs, row, self._wants, self._urls) for row in self._inputs)

    def _survey(self):
        """{key: (file, line)} of all rows."""
        known, errors = {}, 0
        for one in self.requests():
            other = known.setdefault(one.key, (one.file, one.line))
            if other != (one.file, one.line):
                raise ValueError(f"{one.file}, line {one.line}: has the id of {other[0]}, line {other[1]}: "
                                 f"{one.name!r}")
            errors += one.error is not None
            if self.args.max_errors is not None and errors > self.args.max_errors:
                raise ValueError(one.error.removeprefix("ValueError: "))
        return known

    def over(self, compute, most):
        """Computes what is not there, up to `most` rows at a time; returns the status: 0 when every row is there,
        without an error. compute: a function of a model, requests and a report that gives (request, fields, calls of
        tools); it leaves out what is to be computed later."""
        with contextlib.ExitStack() as stack:
            stack.callback(getattr(self.out, "close", lambda: None))
            if self.args.output is not None:
                self.out.strangers(self.known)
            todo, there = self._todo()
            model, done = None, 0
            aside = self.args.output is not None or not sys.stdout.isatty()     # a bar would be between the rows
            report = stack.enter_context(bars.reporting(aside, "rows", todo))
            for part in self._parts(most):
                self._add_all((one, {"error": one.error}, None) for one in part if one.error is not None)
                part = [one for one in part if one.error is None]
                model = model or (stack.enter_context(options.load(self.args)) if part else None)
                if part:
                    at = done
                    self._add_all(compute(model, part, report and (lambda n, at=at: report((at + n) / max(todo, 1)))))
                done += len(part)
            if there:
                say(f"{there} rows were there")
            return self._end()

    def _wanted(self, key, file, line):
        found = self.out.found(key, file, line)
        return found is None or self.args.retry_errors and found in self.out.failed

    def _todo(self):
        todo = sum(self._wanted(key, *place) for key, place in self.known.items())
        return todo, len(self.known) - todo

    def _parts(self, most):
        rows = (one for one in self.requests() if self._wanted(one.key, one.file, one.line))
        while part := list(itertools.islice(rows, most)):
            yield part

    def _add_all(self, results):
        for request, made, calls in results:
            self.out.add(requests.answer(request, made, calls))
            if made["error"] is not None and self.args.max_errors is not None and \
                    len(self.out.failed) > self.args.max_errors:
                raise ValueError(f"more than {self.args.max_errors} rows failed, the last is line {request.line} of "
                                 f"{request.file}: {made['error']}")

    def _end(self):
        failed = len(self.out.failed)
        if self.late:
            say(f"{self.late} rows were not finished in time: --resume goes on with them")
        elif self.args.output is not None:
            if not self.out.finish(self.known):
                raise ValueError(f"{self.args.output}: rows of the inputs have no result: they changed meanwhile")
            failed = sum(self.out.found(key, *place) in self.out.failed for key, place in self.known.items())
        if failed:
            say(f"{failed} failed" if self.args.output is None else f"{failed} rows have an error: --resume "
                "--retry-errors computes them again")
        return 1 if failed or self.late else 0
