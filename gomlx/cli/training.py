"""train: low-rank terms on a model's weights as they are, from a file of rows to an adapter."""
import argparse
import contextlib
import dataclasses
import json
import os

import gomlx
from gomlx._files import headers, locating
from gomlx._files.reading import read_json
from gomlx._generation import chat_formats
from gomlx._generation.tokenizer import Tokenizer
from gomlx.cli import options
from gomlx.cli.output import print_json, say, show_table, size, wants_colour

LOSSES = ("sft", "dpo", "orpo", "kto", "distillation")
SHOWN = 20                      # lines about steps, at most, besides evaluations
# Options that are arguments of gomlx.train by the same name, and those of its LoRAConfig.
TRAIN = ("loss", "steps", "epochs", "batch", "batch_tokens", "accumulate", "optimizer", "learning_rate", "schedule",
         "warmup", "clip", "eval_every", "patience", "checkpoints", "forward", "save_every", "logs",
         "seed")
ROWS = ("mask", "max_tokens", "too_long", "template", "template_args")
LORA = ("rank", "alpha", "dropout", "layers", "init", "rslora", "dora", "modules_to_save")


def names(text):
    """all, or names with commas"""
    return text if text == "all" else tuple(text.split(","))


def variable(text):
    """NAME=VALUE, the value as JSON where it is."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


def add(commands):
    made = commands.add("train", train, "Fine-tune a model: low-rank terms on its weights as they are, quantised or "
                        "not.", options.model, options.json,
                        examples=["gomlx train model.gguf --data chats.jsonl --run my-run --epochs 2",
                                  "gomlx train model.gguf --data chats.jsonl --preview",
                                  "gomlx train model.gguf --data chats.jsonl --targets all --rank 16 --plan",
                                  "gomlx train org/name --data pairs.jsonl --dpo --learning-rate 5e-6",
                                  "gomlx train --resume my-run"])
    made.add_argument("path", nargs="?", metavar="MODEL", help="the model; the same as -m MODEL")
    made.add_argument("--data", metavar="FILE", help="rows: .jsonl, .json, or a folder with train.jsonl "
                      "and valid.jsonl")
    made.add_argument("--eval-data", metavar="FILE", help="rows to evaluate (default: valid.jsonl of the folder)")
    made.add_argument("--run", dest="folder", metavar="FOLDER", help="a new folder for the adapter, the state and "
                      "metrics (default: run)")
    made.add_argument("--resume", metavar="FOLDER", help="go on with a run that was stopped, by its own settings")
    made.add_argument("--logs", type=lambda text: tuple(text.split(",")), metavar="NAMES", help="metrics for other "
                      "programs, in the folder: tensorboard, trackio, or both with a comma")
    made.add_argument("--plan", action="store_true", help="load nothing: show memory and hours; status 1 when it does "
                      "not fit")
    made.add_argument("--preview", action="store_true", help="load nothing: show the first rows, what counts in green")
    add_steps(made.add_argument_group("steps"))
    add_terms(made.add_argument_group("terms"))
    add_rows(made.add_argument_group("rows"))
    add_teacher(commands)


def add_teacher(commands):
    made = commands.add("teacher", teach, "Write what a model says of rows to a file, from which another one learns: "
                        "gomlx train --loss distillation --teacher FILE.", options.model, options.json,
                        examples=["gomlx teacher large.gguf --data chats.jsonl --student small.gguf -o "
                                  "teacher.safetensors"])
    made.add_argument("path", nargs="?", metavar="MODEL", help="the teacher; the same as -m MODEL")
    made.add_argument("--data", metavar="FILE", required=True, help="rows: .jsonl, .json, or a folder with "
                      "train.jsonl and valid.jsonl, of which both are written")
    made.add_argument("--student", metavar="MODEL", help="the model that will learn, which is not loaded: its "
                      "tokenizer and chat template read the rows (default: the teacher's)")
    made.add_argument("-o", "--output", metavar="FILE", required=True, help="a name that ends in .safetensors")
    made.add_argument("--top", type=int, default=128, metavar="K", help="how many of the likeliest tokens at each "
                      "token that counts (default: 128)")
    made.add_argument("--all-tokens", action="store_true", help="all of them: the same loss as the teacher itself")
    made.add_argument("-t", "--temperature", type=float, default=1.0, metavar="X", help="(default: 1)")
    add_rows(made.add_argument_group("rows"))


def add_steps(group):
    group.add_argument("--loss", choices=LOSSES, help="sft, the cross entropy of answers (the default); dpo or orpo of "
                       "preferences; kto of answers with a label; distillation")
    for name in ("dpo", "orpo", "kto"):
        group.add_argument(f"--{name}", dest="loss", action="store_const", const=name,
                           help=f"the same as --loss {name}")
    group.add_argument("--beta", type=float, metavar="X", help="of dpo, orpo and kto (default: 0.1)")
    group.add_argument("--teacher", metavar="MODEL", help="of distillation; or a file of `gomlx teacher`")
    group.add_argument("-t", "--temperature", type=float, metavar="X", help="of distillation (default: 1)")
    for flag, kind, what in (
            ("--steps", int, "how many"), ("--epochs", float, "how often the rows are gone through (default: 1)"),
            ("--batch", int, "rows of a pass (default: 4)"),
            ("--batch-tokens", int, "instead of that: tokens of a pass"),
            ("--accumulate", int, "passes of a step (default: 1)"), ("--learning-rate", float, "(default: 1e-4)"),
            ("--warmup", int, "steps in which the rate grows (default: 0)"),
            ("--clip", float, "the largest norm of the gradients (default: 1)"),
            ("--eval-every", int, "steps between evaluations"),
            ("--patience", int, "end after so many evaluations without a better one"),
            ("--save-every", int, "steps between states on the disk (default: 10)"),
            ("--seed", int, "of the order of rows and of A (default: 0)")):
        group.add_argument(flag, type=kind, metavar="N" if kind is int else "X", help=what)
    group.add_argument("--optimizer", metavar="NAME", help="adamw (the default), adam, sgd, lion, adafactor, muon, ...")
    group.add_argument("--schedule", choices=("constant", "linear", "cosine"), help="of the rate (default: constant)")
    group.add_argument("--checkpoints", action="store_const", const=True, help="keep less and compute it again: less "
                       "memory, the same bits")
    group.add_argument("--forward", choices=("exact", "int8", "bf16"), help="how products with the model's matrices "
                       "round (default: exact)")


def add_terms(group):
    group.add_argument("--rank", type=int, metavar="N", help="(default: 8)")
    group.add_argument("--alpha", type=float, metavar="X", help="the scale is alpha / rank (default: 16)")
    group.add_argument("--targets", type=names, metavar="NAMES", help="layers with commas between, or all (default: "
                       "q_proj,v_proj)")
    group.add_argument("--layers", type=int, metavar="N", help="only the last so many layers of the decoder")
    group.add_argument("--lora-dtype", choices=("float32", "bfloat16"), help="of the terms (default: float32)")
    group.add_argument("--init", choices=("normal", "kaiming", "gaussian"), help="of A (default: normal)")
    group.add_argument("--dropout", type=float, metavar="X", help="the share of the terms' inputs that is left out")
    group.add_argument("--rslora", action="store_const", const=True, help="scale by alpha / sqrt(rank)")
    group.add_argument("--modules-to-save", type=lambda text: tuple(text.split(",")), metavar="NAMES",
                       help="modules with commas between that are trained as a whole: lm_head, embed_tokens, norm, ...")
    group.add_argument("--dora", action="store_const", const=True, help="train the lengths of rows too")


def add_rows(group):
    group.add_argument("--mask", choices=("assistant", "last", "all"), help="which tokens count: all answers' (the "
                       "default), the last answer's, or all")
    group.add_argument("--row-tokens", type=int, metavar="N", help="of a row, at most (default: 2048)")
    group.add_argument("--too-long", choices=("cut", "drop"), help="what is done with longer rows (default: cut)")
    group.add_argument("--plain", action="store_true", help="prompts and completions as they are, without the chat "
                       "template")
    group.add_argument("--template-arg", action="append", type=variable, default=[], metavar="NAME=VALUE",
                       help="a variable of the chat template; may be given several times")


def train(args):
    one_model(args)
    given = {name: getattr(args, name) for name in TRAIN if getattr(args, name) is not None}
    given |= rows_of(args)
    loss_options = {name: getattr(args, name) for name in ("beta", "temperature") if getattr(args, name) is not None}
    given |= {"loss_options": loss_options} if loss_options else {}
    check(args)
    if args.plan or args.preview:
        return look(args, given)
    if args.resume is not None and args.model is None:
        args.model = gomlx.lora.TrainingRun.config_of(args.resume)["model"]["path"]
    adapters, args.adapter = args.adapter or [], None           # it is trained, and not loaded beside what is trained
    gomlx.distributed.init()                          # where MPI started several of these, they train together
    with contextlib.ExitStack() as opened:
        teacher = args.teacher
        if teacher is not None and not teacher.endswith(".safetensors"):
            teacher = opened.enter_context(gomlx.load(teacher))
        model = opened.enter_context(options.load(args))
        if not isinstance(model, gomlx.Model):
            raise NotImplementedError("train: only the backend native trains")
        where = {"resume": args.resume}
        if args.resume is None:
            where = {"run": args.folder or "run",
                     "lora": gomlx.read_adapter(adapters[0], model) if adapters else lora_of(args)}
        run = opened.enter_context(gomlx.train(model, args.data, eval_data=args.eval_data, teacher=teacher, **where,
                                               **given))
        follow(run, args.json)
    return 0


def one_model(args):
    """The model, named in one way."""
    if args.path is not None and args.model is not None:
        raise ValueError(f"two models: {args.path!r} and -m {args.model!r}")
    args.model = args.model if args.path is None else args.path


def rows_of(args):
    """What load_data() is given by the options of add_rows()."""
    given = {"mask": None if args.mask == "all" else args.mask} if args.mask else {}
    given |= {"max_tokens": args.row_tokens} if args.row_tokens is not None else {}
    given |= {"too_long": args.too_long} if args.too_long is not None else {}
    given |= {"template": False} if args.plain else {}
    return given | ({"template_args": dict(args.template_arg)} if args.template_arg else {})


def teach(args):
    """The command `teacher`."""
    one_model(args)
    reader = tokenizer_of(locating.locate(args.student)) if args.student is not None else None
    with contextlib.ExitStack() as opened:
        model = opened.enter_context(options.load(args))
        if not isinstance(model, gomlx.Model):
            raise NotImplementedError("teacher: only models of the backend native teach")
        splits = ["train"] + ["valid"] * os.path.isfile(os.path.join(args.data, "valid.jsonl"))
        data = [gomlx.lora.load_data(args.data, reader or model, split=split, **rows_of(args)) for split in splits]
        path = gomlx.lora.save_teacher(model, data, args.output, top=None if args.all_tokens else args.top,
                                       temperature=args.temperature)
    said = {"path": path, "rows": sum(map(len, data)), "targets": sum(one.targets for one in data),
            "bytes": os.path.getsize(path)}
    if args.json:
        print_json(said)
    else:
        say(f"wrote {path}, {size(said['bytes'])}: {said['targets']} tokens of {said['rows']} rows")
    return 0


def check(args):
    """Options that do not go together: what would have no effect is refused."""
    if args.resume is None and args.data is None:
        raise ValueError("--data is missing: rows to train on (or --resume FOLDER)")
    terms = [name for name in (*LORA, "targets", "lora_dtype") if getattr(args, name) is not None]
    of_run = [f"--{name}" for name in ("plan", "preview") if getattr(args, name)] + \
        (["--run"] if args.folder is not None else []) + (["--adapter"] if args.adapter else [])
    flags = [f"--{name.replace('_', '-')}" for name in terms]
    if args.resume is not None and of_run + flags:
        raise ValueError(f"{(of_run + flags)[0]} and --resume: a run goes on as it began, in its own folder")
    if args.adapter and (flags or args.plan):
        raise ValueError(f"{'--plan' if args.plan else flags[0]} and --adapter: what is trained is the adapter as "
                         "it is")
    if len(args.adapter or []) > 1:
        raise ValueError(f"--adapter: {len(args.adapter)} of them, expected the one to go on from")


def follow(run, as_json):
    """Does the steps, and tells of them: rank 0 does of several."""
    if run.rank:
        run.finish()
        return
    every = max(1, run.steps // SHOWN)
    if not as_json:
        left = max(0, run.steps - run.step)
        say(f"{run.adapter!r}; {len(run.data)} rows of {run.data.targets} tokens that count; {left} steps to go")
    try:
        for step in run:
            if as_json:
                print_json(dataclasses.asdict(step))
            elif step.step % every == 0 or step.step == run.steps or step.eval_loss is not None:
                print(line(step, run.steps), flush=True)
    except BaseException:
        say(f"stopped after step {run.step}: gomlx train --resume {run.folder} goes on")
        raise
    say(f"ended by {run.stopped_by}: the adapter is in {run.folder}/adapter")


def line(step, steps):
    parts = [f"step {step.step} of {steps}", f"loss {step.loss:.4f}", f"rate {step.learning_rate:.3g}",
             f"gradient {step.gradient_norm:.3g}", f"{step.tokens / step.seconds:.0f} tokens/s"]
    parts += [f"{name} {value:.3g}" for name, value in step.metrics.items()]
    return "  ".join(parts + ([f"evaluation {step.eval_loss:.4f}"] if step.eval_loss is not None else []))


def lora_of(args):
    given = {name: getattr(args, name) for name in LORA if getattr(args, name) is not None}
    given |= {"targets": args.targets} if args.targets else {}
    given |= {"dtype": args.lora_dtype} if args.lora_dtype else {}
    return gomlx.lora.LoRAConfig(**given, **({"seed": args.seed} if args.seed is not None else {}))


def look(args, given):
    """--preview and --plan: the data and the files' headers."""
    path = locating.locate(args.model)
    rows = {name: given[name] for name in ROWS if name in given}
    data = gomlx.lora.load_data(args.data, tokenizer_of(path), **rows)
    if args.plan:
        made = dataclasses.asdict(gomlx.lora.plan_training(path, data, lora=lora_of(args), teacher=args.teacher,
                                                           **given))
        print_json(made) if args.json else show_table(made)
        return 0 if made["fits"] else 1
    shown = {"kind": data.kind, "rows": len(data), "tokens": data.tokens, "targets": data.targets,
             "cut": [dataclasses.asdict(one) for one in data.cut]}
    if args.json:
        print_json(shown | {"preview": data.preview(colour=False)})
        return 0
    print(data.preview(colour=wants_colour()))
    say(f"{len(data)} rows of kind {data.kind}: {data.tokens} tokens, {data.targets} count, {len(data.cut)} too long")
    return 0


def tokenizer_of(path):
    """A model's tokenizer without its weights, with the chat format that loading gives it."""
    if os.path.isdir(path):
        made = Tokenizer.from_file(path)
        chat_formats.configure(made, read_json(os.path.join(path, "config.json")))
        return made
    made = Tokenizer.from_gguf(path)
    made.model_type = headers.read(path).config.get("general.architecture")
    return made
