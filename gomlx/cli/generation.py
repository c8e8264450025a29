"""generate and chat: text, a token at a time."""
import json
import sys

from gomlx import profiling
from gomlx.cli import options
from gomlx.cli.output import coloured, print_json, result_json, say
from gomlx.cli.talk import Conversation


def add(commands):
    made = commands.add("generate", generate, "Continue a text.", options.model, options.sampling, options.form,
                        options.json,
                        examples=['gomlx generate "Once upon a time" -n 100 --seed 1',
                                  'gomlx generate -m org/name:Q4_K_M "The answer is" -t 0 --stop .',
                                  "cat prompt.txt | gomlx generate - --json",
                                  'gomlx generate "A person as JSON: " --schema person.json'])
    made.add_argument("text", help="the text to continue; - reads standard input")
    made.add_argument("--samples", type=int, default=1, metavar="N", help="continuations of the text, which is "
                      "computed once")
    made = commands.add("chat", chat, "Answer once, or talk when no text is given.", options.model, options.sampling,
                        options.form, options.json,
                        examples=["gomlx chat", 'gomlx chat "Tell me a story about a cat." -n 200',
                                  'gomlx chat -m path/to/model --system "Answer in one sentence." --no-think'])
    made.add_argument("text", nargs="?", help="the question; - reads standard input")
    made.add_argument("--system", metavar="TEXT", help="the system message")
    made.add_argument("--think", action="store_true", default=None, help="reason before answering, where the model can")
    made.add_argument("--no-think", action="store_false", dest="think", help="answer at once")
    made.add_argument("--thinking-budget", type=int, metavar="N", help="end the reasoning after this many tokens")
    made.add_argument("--show-reasoning", action="store_true", help="print reasoning also where standard output is "
                      "not a terminal")
    made.add_argument("--tools", metavar="FILE", help="a JSON list of the tools that the model may call")
    made.add_argument("--tool-choice", metavar="NAME", help="none, auto (calls are valid under their tools' schemas), "
                      "required, or the tool that has to be called (default: what is written is not held to the tools)")
    made.add_argument("--one-call", action="store_true", help="at most one call of a tool")
    made.add_argument("--chat-format", metavar="NAME", help="a built-in format instead of the model's template")


def generate(args):
    if args.samples != 1:
        return samples(args)
    with options.load(args) as model, \
            model.generate(options.read_text(args.text),
                           **options.sampling_of(args) | options.form_of(args)) as stream:
        show(stream, args)
    return 0


def samples(args):
    """Prints the continuations when all have ended, or as JSON each one as soon as it has."""
    with options.load(args) as model, \
            model.generate(options.read_text(args.text), n=args.samples,
                           **options.sampling_of(args) | options.form_of(args)) as stream:
        for index, token in stream:
            if args.json and token.finish_reason is not None:
                print_json({"index": index} | result_json(stream.ended(index)))
    failed = [one.error for one in stream.results if one.error is not None]
    if failed:
        raise failed[0]
    for index, result in enumerate(stream.results):
        if not args.json:
            print(coloured(f"[{index}]", "dim") + result.text, flush=True)
    return 0


def show(stream, args):
    """Prints a stream as it comes, reasoning dimmed, calls of tools at the end as JSON; or its result as JSON."""
    reasoning, end = sys.stdout.isatty() or getattr(args, "show_reasoning", False), "\n"
    channel = None
    for part in stream.parts():
        if args.json or not part.text or part.channel == "tool" or part.channel == "reasoning" and not reasoning:
            continue
        if channel not in (None, part.channel) and end != "\n":
            print()
        channel, end = part.channel, part.text[-1]
        print(coloured(part.text, "dim") if channel == "reasoning" else part.text, end="", flush=True)
    result = stream.result
    if args.json:
        print_json(result_json(result))
        return
    if end != "\n":
        print(flush=True)
    for call in result.tool_calls:
        if call.error:
            say(f"a call that cannot be used: {call.error}")
        print(json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) if call.name is not None
              and call.arguments is not None else call.raw, flush=True)
    if result.reasoning and not result.answer and not result.tool_calls:
        say(f"ended by {result.finish_reason} within the reasoning"
            + ("" if reasoning else "; --show-reasoning prints it"))
    if result.profile:
        say(profiling.summary(result.profile, "", result.prompt_tokens, result.generated_tokens))
    if sys.stderr.isatty():
        speed = f", {result.decode_tps:.1f} tokens/s" if result.decode_tps else ""
        say(f"{result.generated_tokens} tokens{speed}, ended by {result.finish_reason}, seed {result.seed}")


def chat_options(args):
    tools = options.read_json_file(args.tools) if args.tools is not None else None
    if args.tools is not None and not isinstance(tools, list):
        raise ValueError(f"{args.tools}: expected a list of tools")
    if not tools and (args.tool_choice is not None or args.one_call):
        raise ValueError(f"{'--one-call' if args.one_call else '--tool-choice'}: --tools FILE says which there are")
    held = {"tool_choice": args.tool_choice} if args.tool_choice is not None else {}
    held |= {"parallel_tool_calls": False} if args.one_call else {}
    return options.sampling_of(args) | options.form_of(args) | held | {
        "tools": tools, "enable_thinking": args.think, "chat_format": args.chat_format,
        "thinking_budget": args.thinking_budget}


def chat(args):
    system = [{"role": "system", "content": args.system}] if args.system else []
    with options.load(args) as model:
        if args.text is None:
            return Conversation(model, args, system, show, chat_options(args)).run()
        messages = system + [{"role": "user", "content": options.read_text(args.text)}]
        with model.chat(messages, **chat_options(args)) as stream:
            show(stream, args)
    return 0
