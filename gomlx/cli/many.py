"""batch, classify, score and embed: commands for many texts at once."""
import json
import os
import sys

from gomlx._base import bars
from gomlx.cli import options
from gomlx.cli.output import coloured, json_line, print_json, result_json, say


def add(commands):
    made = commands.add("batch", batch, "Continue or answer the prompts of a JSONL file together.", options.model,
                        options.sampling, options.json,
                        examples=["gomlx batch prompts.jsonl -n 50 -o answers.jsonl",
                                  "gomlx batch prompts.jsonl -n 50 -o answers.jsonl --resume",
                                  "echo '{\"prompt\": \"Once\"}' | gomlx batch - --json"])
    made.add_argument("file", metavar="FILE.jsonl",
                      help='lines such as {"prompt": "Once"} or {"messages": [...]}, with '
                      'options of their own ("max_tokens", "seed", ...) and an "id"; - reads standard input')
    made.add_argument("--batch", type=int, default=16, metavar="N", help="sequences at once (default: 16)")
    made.add_argument("-o", "--output", metavar="OUT.jsonl", help="write the results there as JSON lines, each as its "
                                                                  "prompt "
                      "ends")
    made.add_argument("--resume", action="store_true", help="go on with OUT.jsonl after an interruption: prompts whose "
                                                            "row is "
                      "there are not computed again")
    made.add_argument("--keep-going", action="store_true", help="a line that is not a prompt becomes a row with an "
                                                                "error")
    made = commands.add("classify", classify, "Show what comes next after each line, or which label fits.",
                        options.model, options.json,
                        examples=["gomlx classify reviews.txt --label ' good' --label ' bad'"])
    made.add_argument("file", metavar="FILE", help="a text a line; - reads standard input")
    made.add_argument("--label", action="append", metavar="TEXT", help="one of the answers; may be given several times")
    made = commands.add("score", score, "Show how likely a model finds each line.", options.model, options.json,
                        examples=["gomlx score texts.txt", "echo 'Once upon a time' | gomlx score -"])
    made.add_argument("file", metavar="FILE", help="a text a line; - reads standard input")
    made = commands.add("embed", embed, "Print a vector for each line.", options.model, options.json,
                        examples=["gomlx embed texts.txt --pooling mean --normalize --json"])
    made.add_argument("file", metavar="FILE", help="a text a line; - reads standard input")
    made.add_argument("--pooling", choices=("last", "mean", "cls"), help="(default: as the model states)")
    made.add_argument("--normalize", action="store_true", default=None, help="to length 1")


def batch(args):
    """Prints the result of each prompt as it ends, with its line's number and id; 1 when any failed, now or in the rows
    that were there, or was not finished in time."""
    lines, bad = read_prompts(args)
    rows = Rows(args)
    numbers = {number: name for number, (name, _) in lines} | dict.fromkeys(bad)
    lines = [one for one in lines if not rows.has(one[0], numbers)]
    bad = {number: error for number, error in bad.items() if not rows.has(number, numbers)}
    with rows:
        for number, error in bad.items():
            rows.add(number, None, {"error": error})
        failed = len(bad) + (generate_rows(args, lines, rows) if lines else 0)
    if rows.done:
        say(f"{len(rows.done)} rows were there" + (f", {len(rows.failed)} with an error" if rows.failed else ""))
    return 1 if failed or rows.failed else 0


def generate_rows(args, lines, rows):
    """Adds the rows of the prompts; returns how many failed."""
    with options.load(args) as model:
        common = options.sampling_of(args)
        timeout = common.pop("timeout", None)
        own_timeouts = ["timeout" in asked for _, (_, asked) in lines]
        stream = model.generate_batch([asked.pop("messages" if "messages" in asked else "prompt") for _,
                                       (_, asked) in lines],
                                      options=[asked for _, (_, asked) in lines], batch_size=args.batch,
                                      timeout=timeout, **common)
        shown, late = [False] * len(lines), []

        def show(index):
            number, (name, _) = lines[index]
            shown[index] = True
            result = stream.ended(index)
            if rows.path is not None and result.finish_reason == "timeout" and not own_timeouts[index]:
                late.append(number)
                return                          # left out, so that --resume computes it
            rows.add(number, name, result_json(result))

        aside = rows.path is not None or not sys.stdout.isatty()        # a bar would come between the rows
        with stream, bars.reporting(aside, "generating", len(lines)) as report:
            for index, token in stream:
                if token.finish_reason is not None:
                    show(index)
                    if report:
                        report(sum(shown) / len(shown))
        for index in [i for i, done in enumerate(shown) if not done]:
            show(index)
    stats, failed = stream.stats, sum(one.error is not None for one in stream.results)
    say(f"{stats['prompts']} prompts, {stats['generated_tokens']} tokens in {stats['seconds']:.1f} s"
        + (f", {stats['tokens_per_second']:.1f} tokens/s" if stats["tokens_per_second"] else "")
        + (f", {failed} failed" if failed else ""))
    if late:
        say(f"{len(late)} prompts were not finished in time: --resume goes on with them")
    return failed + len(late)


def read_prompts(args):
    """([(number, (id, options))], {number: error}) of the file's lines. Without --keep-going the first line that is not
    a prompt is an error before anything is computed."""
    lines, bad = [], {}
    for number, line in options.read_lines(args.file):
        try:
            lines.append((number, read_prompt(args.file, number, line)))
        except ValueError as error:
            if not args.keep_going:
                raise
            bad[number] = f"ValueError: {error}"
    return lines, bad


BEGINNING = b'{"line": '         # of every row


class Rows:
    """Where batch's rows go: text or JSON to standard output, or JSON lines into a file, each written whole at once.
    done: {number: id} of the rows that the file had, failed the numbers of those with an error; a last line that a
    killed batch did not finish is cut off."""

    def __init__(self, args):
        self.path, self._json, self._prompts = args.output, args.json, args.file
        self.done, self.failed, self._file, self._end = {}, set(), None, 0
        if args.resume and self.path is None:
            raise ValueError("--resume: expected -o FILE, whose rows are not computed again")
        if self.path is None:
            return
        exists = os.path.exists(self.path)
        if exists and not args.resume and os.path.getsize(self.path):
            raise ValueError(f"{self.path} exists already: --resume goes on with it")
        self._file = open(self.path, "r+b" if exists else "w+b")
        self._read()

    def _read(self):
        for i, line in enumerate(self._file, 1):
            try:
                if line.endswith(b"\n"):
                    row = json.loads(line)
                    self.done[row["line"]] = row["id"]
                    self.failed |= {row["line"]} if row.get("error") is not None else set()
                    self._end += len(line)
                elif not line.startswith(BEGINNING[:len(line)]):
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ValueError(f"{self.path}, line {i}: no row of a batch") from None

    def has(self, number, names):
        """Whether the file has a row already; ValueError if the file is of other prompts. names: {number: id}."""
        strange = [one for one, name in self.done.items()
                   if one not in names or names[one] != name and not (name is None and one in self.failed)]
        if strange:
            raise ValueError(f"{self.path}: its row of line {strange[0]} has id {self.done[strange[0]]!r}, which "
                             f"{self._prompts} "
                             "has not there: it is another file's")
        return number in self.done

    def add(self, number, name, row):
        if self._file is not None:
            self._file.write(json_line({"line": number, "id": name} | row).encode() + b"\n")
            self._file.flush()
        elif self._json:
            print_json({"line": number, "id": name} | row)
        elif row["error"] is not None:
            say(f"{self._prompts}, line {number}: {row['error']}")
        else:
            print(coloured(f"[{number if name is None else name}] ", "dim") + row["text"], flush=True)

    def __enter__(self):
        if self._file is not None:
            self._file.seek(self._end)
            self._file.truncate()
        return self

    def __exit__(self, *exc):
        if self._file is not None:
            self._file.close()


def read_prompt(path, number, line):
    """(id, options) of a line: prompt or messages are among the options."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
    if isinstance(asked, str):
        asked = {"prompt": asked}
    if not isinstance(asked, dict) or ("prompt" in asked) == ("messages" in asked):
        raise ValueError(f"{path}, line {number}: expected an object with either \"prompt\" or \"messages\"")
    messages = asked.get("messages", [{}])
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise ValueError(f"{path}, line {number}: messages: expected a list of {{\"role\": ..., \"content\": ...}}")
    if isinstance(asked.get("logit_bias"), dict):       # JSON's names are texts
        try:
            asked["logit_bias"] = {int(token_id): bias for token_id, bias in asked["logit_bias"].items()}
        except ValueError:
            raise ValueError(f"{path}, line {number}: logit_bias: expected token ids as names") from None
    name = asked.pop("id", None)
    return name, asked


def texts(args):
    found = [line.rstrip("\r\n") for _, line in options.read_lines(args.file)]
    if not found:
        raise ValueError(f"{args.file}: no text in it")
    return found


def classify(args):
    found = texts(args)
    with options.load(args) as model:
        done = model.classify(found, labels=args.label)
    if args.json:
        print_json({"results": [{"text": text, "token": one.token, "token_text": one.text, "logprob": one.logprob,
                                 "label": one.label, "probabilities": one.probabilities,
                                 "label_logprobs": one.label_logprobs} for text, one in zip(found, done, strict=True)],
                    "label_tokens": done.label_tokens, "prompt_tokens": done.prompt_tokens, "seconds": done.seconds,
                    "tokens_per_second": done.tokens_per_second})
        return 0
    for text, one in zip(found, done, strict=True):
        if one.label is not None:
            print(f"{one.label}\t{one.probabilities[one.label]:.3f}\t{text}")
        else:
            print(f"{one.text!r}\t{one.logprob:.3f}\t{text}")
    say(f"{len(found)} texts, {done.prompt_tokens} tokens in {done.seconds:.2f} s"
        + (f", {done.tokens_per_second:.0f} tokens/s" if done.tokens_per_second else ""))
    return 0


def score(args):
    found = texts(args)
    with options.load(args) as model:
        done = model.score(found)
    for text, one in zip(found, done, strict=True):
        if args.json:
            print_json({"text": text, "tokens": one.tokens, "logprobs": one.logprobs, "total": one.total,
                        "perplexity": one.perplexity})
        else:
            print(f"{one.total:.3f}\t{'-' if one.perplexity is None else format(one.perplexity, '.3f')}\t{text}")
    return 0


def embed(args):
    found = texts(args)
    with options.load(args) as model:
        vectors = model.embed(found, pooling=args.pooling, normalize=args.normalize).tolist()
    for text, vector in zip(found, vectors, strict=True):
        if args.json:
            print_json({"text": text, "embedding": vector})
        else:
            print(*(f"{value:.7g}" for value in vector))
    return 0
