"""batch, classify, score, embed and merge: commands for the rows of files."""
import time

from gomlx._batches import journal, merging, requests
from gomlx.cli import options, rows
from gomlx.cli.output import coloured, print_json, result_json, say


def add(commands):
    made = commands.add("batch", batch, "Continue or answer the prompts of files together.", options.model,
                        options.sampling, options.json,
                        examples=["gomlx batch prompts.jsonl -n 50 -o answers.jsonl",
                                  "gomlx batch prompts.jsonl -n 50 -o answers.jsonl --resume",
                                  "gomlx batch part*.jsonl -o answers.jsonl --shard 0/3 --resume",
                                  "echo '{\"prompt\": \"Once\"}' | gomlx batch - --json"])
    rows.add_options(made, 'lines such as {"prompt": "Once"} or {"messages": [...]}, with options of their own '
                     '("max_tokens", "seed", ...) and an "id", or of OpenAI\'s batch files')
    made.add_argument("--batch", type=int, default=16, metavar="N", help="sequences at once (default: 16)")
    made = commands.add("classify", classify, "Show what comes next after each text, or which label fits.",
                        options.model, options.json,
                        examples=["gomlx classify reviews.txt --label ' good' --label ' bad'",
                                  "gomlx classify reviews.csv --label ' good' --label ' bad' -o found.jsonl"])
    rows.add_options(made, "a text a line")
    made.add_argument("--label", action="append", metavar="TEXT", help="one of the answers; may be given several times")
    made = commands.add("score", score, "Show how likely a model finds each text.", options.model, options.json,
                        examples=["gomlx score texts.txt", "echo 'Once upon a time' | gomlx score -"])
    rows.add_options(made, "a text a line")
    made = commands.add("embed", embed, "Print a vector for each text.", options.model, options.json,
                        examples=["gomlx embed texts.txt --pooling mean --normalize --json"])
    rows.add_options(made, "a text a line")
    made.add_argument("--pooling", choices=("last", "mean", "cls"), help="(default: as the model states)")
    made.add_argument("--normalize", action="store_true", default=None, help="to length 1")
    made = commands.add("merge", merge, "Put the results of several shards into one file.", options.json,
                        examples=["gomlx merge answers.*-of-3.jsonl -o answers.jsonl",
                                  "gomlx merge answers.jsonl -o answers.parquet"])
    made.add_argument("file", nargs="+", metavar="OUT.jsonl", help="what batch, classify, score or embed wrote with -o")
    made.add_argument("-o", "--output", required=True, metavar="FILE", help="the rows of all of them in order, as JSON "
                      "lines, or as *.csv or *.parquet")


# What of a result differs from run to run; all else follows from the row.
OF_THE_RUN = ("cached_tokens", "prefill_tps", "decode_tps", "prefill_seconds", "decode_seconds", "total_seconds",
              "peak_memory_bytes", "active_memory_bytes")
AT_ONCE = 64            # times --batch rows are one generate_batch: the last of them decode in smaller batches


def batch(args):
    """Writes or prints the result of each prompt as it ends; 1 when any failed or was not finished in time."""
    def show(row):
        if args.json:
            print_json(row)
        elif row["error"] is not None:
            error = row["error"] if isinstance(row["error"], str) else row["error"]["message"]
            say(f"{row['file']}, line {row['line']}: {error}")
        else:
            name = row["line"] if journal.row_name(row) is None else journal.row_name(row)
            print(coloured(f"[{name}] ", "dim") + text_of(row), flush=True)

    common = options.sampling_of(args)
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    common.pop("timeout", None)
    of_all = common.pop("seed") or 0
    run = rows.Run(args, "prompt", "json", (requests.CHAT, requests.COMPLETIONS), show)
    counted = {"prompts": 0, "generated_tokens": 0, "seconds": 0.0}

    def compute(model, part, report):
        yield from generated(run, model, part, report, common, of_all, deadline, counted)

    status = run.over(compute, AT_ONCE * max(1, args.batch))
    if counted["prompts"]:
        say(f"{counted['prompts']} prompts, {counted['generated_tokens']} tokens in {counted['seconds']:.1f} s"
            + (f", {counted['generated_tokens'] / counted['seconds']:.1f} tokens/s" if counted["seconds"] else ""))
    return status


def text_of(row):
    if "text" in row:
        return row["text"]
    choice = row["response"]["body"]["choices"][0]      # of a row in OpenAI's form
    return choice["text"] if "text" in choice else choice["message"]["content"] or ""


def generated(run, model, part, report, common, of_all, deadline, counted):
    """Gives the results of prompts as they end. counted: is added to."""
    own_timeouts = ["timeout" in one.asked for one in part]
    prompts = [one.asked.pop("messages" if "messages" in one.asked else "prompt") for one in part]
    stream = model.generate_batch(prompts, options=[{"seed": one.seed(of_all)} | one.asked for one in part],
                                  batch_size=run.args.batch, timeout=None if deadline is None else
                                  max(deadline - time.monotonic(), 1e-9), **common)
    shown = [False] * len(part)

    def ended(index):
        result, shown[index] = stream.ended(index), True
        if run.args.output is not None and result.finish_reason == "timeout" and not own_timeouts[index]:
            run.late += 1
            return []                           # left out, so that --resume computes it
        made = {name: one for name, one in result_json(result).items() if name not in OF_THE_RUN}
        return [(part[index], made, result.message.get("tool_calls"))]

    with stream:
        for index, token in stream:
            if token.finish_reason is not None:
                yield from ended(index)
                if report:
                    report(sum(shown))
    for index in [i for i, done in enumerate(shown) if not done]:
        yield from ended(index)
    for name in counted:
        counted[name] += stream.stats[name]


def texts(args):
    """The texts of all rows, for what prints them."""
    run, found = rows.Run(args, "text", "text"), []
    for one in run.requests():
        if one.error is not None:
            raise ValueError(one.error.removeprefix("ValueError: "))
        found.append(one.asked["text"])
    if not found:
        raise ValueError(f"{args.file[0]}: no text in it")
    return found


def into_rows(args, fields, urls=()):
    """Writes a row for each text. fields: of a model and texts, the fields of each; urls: of OpenAI's rows."""
    def compute(model, part, report):
        try:
            made = fields(model, [one.asked["text"] for one in part])
        except (ValueError, RuntimeError) as error:     # of one of them: each is asked by itself
            if len(part) > 1:
                for one in part:
                    yield from compute(model, [one], None)
            else:
                yield part[0], {"error": f"{type(error).__name__}: {error}"}, None
            return
        for one, found in zip(part, made, strict=True):
            yield one, found | {"error": None}, None
        if report:
            report(len(part))

    return rows.Run(args, "text", "text", urls).over(compute, 64)


def classify(args):
    if args.output is not None:
        return into_rows(args, lambda model, found: [
            {"token": one.token, "token_text": one.text, "logprob": one.logprob, "label": one.label,
             "probabilities": one.probabilities, "label_logprobs": one.label_logprobs}
            for one in model.classify(found, labels=args.label)])
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


def score_fields(one):
    return {"tokens": one.tokens, "logprobs": one.logprobs, "total": one.total, "perplexity": one.perplexity}


def score(args):
    if args.output is not None:
        return into_rows(args, lambda model, found: [score_fields(one) for one in model.score(found)])
    found = texts(args)
    with options.load(args) as model:
        done = model.score(found)
    for text, one in zip(found, done, strict=True):
        if args.json:
            print_json({"text": text} | score_fields(one))
        else:
            print(f"{one.total:.3f}\t{'-' if one.perplexity is None else format(one.perplexity, '.3f')}\t{text}")
    return 0


def embed(args):
    if args.output is not None:
        return into_rows(args, lambda model, found: [
            {"embedding": vector, "prompt_tokens": len(model.tokenizer.encode_prompt(text))} for text, vector in
            zip(found, model.embed(found, pooling=args.pooling, normalize=args.normalize).tolist(), strict=True)],
            (requests.EMBEDDINGS,))
    found = texts(args)
    with options.load(args) as model:
        vectors = model.embed(found, pooling=args.pooling, normalize=args.normalize).tolist()
    for text, vector in zip(found, vectors, strict=True):
        if args.json:
            print_json({"text": text, "embedding": vector})
        else:
            print(*(f"{value:.7g}" for value in vector))
    return 0


def merge(args):
    count = merging.merge(args.file, args.output)
    if args.json:
        print_json({"output": args.output, "rows": count})
    else:
        say(f"{count} rows")
    return 0
