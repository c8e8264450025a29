"""tokens: what a model's tokenizer makes of a text."""
import os

from gomlx import headers, loading
from gomlx.cli import options
from gomlx.cli.output import coloured, print_json, say
from gomlx.tokenizer import Tokenizer


def add(commands):
    made = commands.add("tokens", tokens, "Show the tokens of a text; no weights are read.", options.source,
                        options.json)
    made.add_argument("text", help="the text; - reads standard input")
    made.add_argument("--chat", action="store_true", help="as a user's message, through the chat template")
    made.add_argument("--bare", action="store_true", help="without the tokens that begin and end a text")


def tokens(args):
    if args.model is None:
        say(f"using {loading.PACKAGED}, the model in the package")
    tokenizer = tokenizer_of(loading.locate(args.model))
    text = options.read_text(args.text)
    if args.chat:
        text = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    ids = tokenizer.encode(text, add_special_tokens=False) if args.bare else tokenizer.encode_prompt(text)
    rows = pieces(tokenizer, ids)
    if args.json:
        print_json({"count": len(rows), "tokens": rows})
        return 0
    width = max((len(str(one)) for one in ids), default=0)
    for i, row in enumerate(rows):
        shown = coloured(row["token"], "reverse", "cyan") if row["special"] else \
            coloured(repr(row["text"]), *(("green",) if i % 2 else ()) or ("bold",))
        print(f"{row['id']:{width}}  {shown}" + (f"  {row['token']}" if not row["text"] and not row["special"] else ""))
    say(f"{len(rows)} tokens, {len(text)} characters")
    return 0


def tokenizer_of(path):
    if os.path.isdir(path):
        return Tokenizer.from_file(path)
    return Tokenizer.from_gguf(path, headers.read(path).config)


def pieces(tokenizer, ids):
    """For each id its token as the vocabulary has it and the text that it completes: "" within a character."""
    stream = tokenizer.stream(skip_special_tokens=False)
    rows = [{"id": one, "token": tokenizer.id_to_token(one), "text": stream.push(one),
             "special": tokenizer.is_special(one)} for one in ids]
    if rows:
        rows[-1]["text"] += stream.finish()
    return rows
