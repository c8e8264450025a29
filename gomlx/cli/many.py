"""batch, classify, score and embed: what is done with many texts at once."""
import json

from gomlx.cli import options
from gomlx.cli.output import coloured, print_json, progress, result_json, say


def add(commands):
    made = commands.add("batch", batch, "Continue or answer the prompts of a JSONL file together.", options.model,
                        options.sampling, options.json)
    made.add_argument("file", metavar="FILE.jsonl", help='lines such as {"prompt": "Once"} or {"messages": [...]}, with '
                      'options of their own ("max_tokens", "seed", ...) and an "id"; - reads standard input')
    made.add_argument("--batch-size", type=int, default=16, metavar="N", help="prompts at a time (default: 16)")
    made = commands.add("classify", classify, "Show what comes next after each line, or which label fits.",
                        options.model, options.json)
    made.add_argument("file", metavar="FILE", help="a text a line; - reads standard input")
    made.add_argument("--label", action="append", metavar="TEXT", help="one of the answers; may be given several times")
    made = commands.add("score", score, "Show how likely a model finds each line.", options.model, options.json)
    made.add_argument("file", metavar="FILE", help="a text a line; - reads standard input")
    made = commands.add("embed", embed, "Print a vector for each line.", options.model, options.json)
    made.add_argument("file", metavar="FILE", help="a text a line; - reads standard input")
    made.add_argument("--pooling", choices=("last", "mean", "cls"), help="(default: as the model states)")
    made.add_argument("--normalize", action="store_true", default=None, help="to length 1")


def batch(args):
    """What comes of each prompt as it ends, with its line's number and id; 1 when any failed."""
    lines = [(number, read_prompt(args.file, number, line)) for number, line in options.read_lines(args.file)]
    with options.load(args) as model:
        common = options.sampling_of(args)
        timeout = common.pop("timeout", None)
        stream = model.generate_batch([asked.pop("messages" if "messages" in asked else "prompt") for _, (_, asked) in lines],
                                      options=[asked for _, (_, asked) in lines], batch_size=args.batch_size,
                                      timeout=timeout, **common)
        shown = [False] * len(lines)

        def show(index):
            number, (name, _) = lines[index]
            shown[index] = True
            result = stream.ended(index)
            if args.json:
                print_json({"line": number, "id": name} | result_json(result))
            elif result.error is not None:
                say(f"{args.file}, line {number}: {type(result.error).__name__}: {result.error}")
            else:
                print(coloured(f"[{number if name is None else name}] ", "dim") + result.text, flush=True)

        with stream, progress("generating") as report:
            for index, token in stream:
                if token.finish_reason is not None:
                    show(index)
                    if report:
                        report(sum(shown) / len(shown))
        for index in [i for i, done in enumerate(shown) if not done]:
            show(index)
    stats, failed = stream.stats, sum(one.error is not None for one in stream.results)
    if lines:
        say(f"{stats['prompts']} prompts, {stats['generated_tokens']} tokens in {stats['seconds']:.1f} s"
            + (f", {stats['tokens_per_second']:.1f} tokens/s" if stats["tokens_per_second"] else "")
            + (f", {failed} failed" if failed else ""))
    return 1 if failed else 0


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
