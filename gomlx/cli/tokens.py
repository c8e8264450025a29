"""tokens: what a model's tokenizer makes of a text."""
import os

from gomlx._files import locating
from gomlx._generation.tokenizer import Tokenizer
from gomlx.cli import options
from gomlx.cli.output import print_json, say, wants_colour


def add(commands):
    made = commands.add("tokens", tokens, "Show the tokens of a text; no weights are read.", options.source,
                        options.json,
                        examples=['gomlx tokens "Once upon a time"', 'gomlx tokens -m org/name --chat "Hello" --json'])
    made.add_argument("text", help="the text; - reads standard input")
    made.add_argument("--chat", action="store_true", help="as a user's message, through the chat template")
    made.add_argument("--bare", action="store_true", help="without the tokens that begin and end a text")


def tokens(args):
    if args.model is None:
        say(f"using {locating.PACKAGED}, the model in the package")
    tokenizer = tokenizer_of(locating.locate(args.model))
    text = options.read_text(args.text)
    if args.chat:
        text = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    ids = tokenizer.bare(text) if args.bare else tokenizer.encode_prompt(text)
    if args.json:
        print_json({"count": len(ids), "tokens": tokenizer.pieces(ids)})
        return 0
    if ids:
        print(tokenizer.render(ids, colour=wants_colour()))
    say(f"{len(ids)} tokens, {len(text)} characters")
    return 0


def tokenizer_of(path):
    if os.path.isdir(path):
        return Tokenizer.from_file(path)
    return Tokenizer.from_gguf(path)
