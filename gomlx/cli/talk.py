"""chat without a text: a conversation, question by question."""
import contextlib
import errno
import glob
import json
import os
import sys
import tempfile

from gomlx import Error
from gomlx._generation import chat as templates
from gomlx.cli import options
from gomlx.cli.output import print_json, result_json, say, tell, wants_colour

HELP = '''\
/help             these lines
/system [TEXT]    show the system message, or set it; /system - removes it
/tokens [TEXT]    how many tokens the conversation has, or the tokens of a text
/save FILE        write the conversation, a JSON list of messages
/load FILE        go on with a conversation that was written
/reset            forget the conversation, but not the system message
/exit             leave, as Ctrl-D does; Ctrl-C stops an answer
A line that ends in \\ continues in the next one. What is between """ and """ is one question. //TEXT asks /TEXT.
'''
HISTORY = 1000          # lines that are kept for the next conversation


class Conversation:
    """Questions and answers until the input ends. One session holds the conversation, so that each turn computes only
    what is new; Ctrl-C ends an answer, and between answers the conversation.

    messages    those before the first question
    show        show(stream, args) prints an answer as it comes
    asked       options of model.chat()"""

    def __init__(self, model, args, messages, show, asked):
        self.model, self.messages = model, list(messages)
        self._args, self._show, self._asked = args, show, asked
        self._session = new_session(model)
        self._on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.ended = False

    def run(self):
        with history() if self._on_terminal else contextlib.nullcontext():
            if self._on_terminal:
                say("/help lists the commands, /exit or Ctrl-D leaves, Ctrl-C stops an answer")
            while not self.ended:
                try:
                    self.take(self.read())
                except EOFError:
                    if self._on_terminal:
                        tell("\n")
                    return 0
                except KeyboardInterrupt:
                    if not self._on_terminal:
                        raise
                    tell("\n")
                except UnicodeDecodeError as error:
                    if not self._on_terminal:
                        raise
                    say(f"error: {error}")
        return 0

    # ---- reading ----

    def read(self):
        """A question, or a command: one line, or several. EOFError at the end of the input."""
        line = self.read_line("> ").strip()
        if line.startswith('"""'):
            lines, line = [], line[3:]
            with contextlib.suppress(EOFError):             # an end of the input ends the question too
                while not line.rstrip().endswith('"""'):
                    lines.append(line)
                    line = ""
                    line = self.read_line('" ')
            return "\n".join([*lines, line.rstrip().removesuffix('"""')]).strip()
        lines = []
        with contextlib.suppress(EOFError):
            while line.endswith("\\"):
                lines.append(line[:-1])
                line = ""
                line = self.read_line("\\ ").rstrip()
        return "\n".join([*lines, line]).rstrip()

    def read_line(self, prompt):
        if self._on_terminal:
            return input(prompt)
        with options.decoding("-"):
            line = sys.stdin.readline()
        if line == "":
            raise EOFError
        return line.removesuffix("\n")

    # ---- commands and questions ----

    def take(self, text):
        """Runs a command, or answers a question."""
        if text.startswith("/") and not text.startswith("//"):
            name, _, rest = text[1:].partition(" ")
            command = COMMANDS.get(name)
            if command is None:
                say(f"no command /{name}: there are {', '.join('/' + one for one in COMMANDS)}")
                return
            try:
                command(self, rest.strip())
            except BrokenPipeError:             # standard output is not read to its end: not the command's failure
                raise
            except (OSError, ValueError) as error:
                say(f"error: {' '.join(str(error).split())}")
        elif text:
            self.ask(text.removeprefix("/") if text.startswith("//") else text)

    def ask(self, text):
        """One answer. A question that cannot be answered is taken back."""
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            stream = self.model.chat(messages, session=self._session, reset=self._session is not None, **self._asked)
        except (ValueError, Error) as error:
            say(f"error: {error}; /reset starts anew")
            return
        with stream:
            try:
                self._show(stream, self._args)
            except KeyboardInterrupt:
                stream.close()
                if not sys.stdin.isatty():
                    raise
                if self._args.json:
                    print_json(result_json(stream.result))
                else:
                    print(flush=True)
        self.messages = [*messages, stream.result.message]

    def help(self, rest):
        tell(HELP)

    def system(self, rest):
        has = self.messages[:1] and self.messages[0]["role"] == "system"
        if not rest:
            say(self.messages[0]["content"] if has else "no system message is set")
            return
        self.messages[:1 if has else 0] = [] if rest == "-" else [{"role": "system", "content": rest}]

    def tokens(self, rest):
        tokenizer = self.model.tokenizer
        if rest:
            ids = tokenizer.bare(rest)
            print(tokenizer.render(ids, colour=wants_colour()), flush=True)
        else:
            ids = self._session.ids if self._session is not None else []
        say(f"{len(ids)} tokens" + ("" if rest else f" of {self.model.context_length}"))

    def save(self, rest):
        path = named(rest, "/save")
        if os.path.exists(path):
            read_messages(path)                 # only a file that holds a conversation is replaced
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, prefix=".gomlx-", delete=False) as file:
            try:
                json.dump(self.messages, file, ensure_ascii=False, indent=1)
                file.write("\n")
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.remove(file.name)
                raise
        say(f"wrote {len(self.messages)} messages to {path}")

    def load(self, rest):
        path = named(rest, "/load")
        self.messages = read_messages(path)
        say(f"{len(self.messages)} messages from {path}")

    def reset(self, rest):
        if self._session is not None:
            self._session.truncate(0)
        self.messages = [one for one in self.messages[:1] if one["role"] == "system"]

    def exit(self, rest):
        self.ended = True


COMMANDS = {name: getattr(Conversation, name) for name in ("help", "system", "tokens", "save", "load", "reset", "exit")}


def new_session(model):
    """A session, or None where the backend has none: then each turn computes the whole conversation."""
    try:
        return model.session()
    except NotImplementedError:
        return None


def named(rest, command):
    if not rest:
        raise ValueError(f"{command}: expected the name of a file")
    return os.path.expanduser(rest)


def read_messages(path):
    """The messages in a file; ValueError when it holds something else, or is a pipe or a device."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is not a regular file")
    found = options.read_json_file(path)
    try:
        return templates.check_messages(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: no conversation: {error}") from None


def offers(line, word):
    """What Tab offers for the word that a line ends in: commands, and the files of /save and /load."""
    if line.startswith(("/save ", "/load ")):
        path = glob.escape(os.path.expanduser(word))
        return sorted(one + "/" * os.path.isdir(one) for one in glob.glob(path + "*"))
    return [f"/{name}" for name in COMMANDS
            if f"/{name}".startswith(word)] if line.startswith("/") and line == word else []


@contextlib.contextmanager
def history():
    """input() with line editing, and the lines of earlier conversations, in a file that only their user may read."""
    try:
        import readline
    except ImportError:                         # this Python was built without readline
        yield
        return
    folder = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "gomlx")
    path = os.path.join(folder, "chat_history")
    readline.set_completer_delims(" ")
    readline.set_completer(lambda text, number: ([*offers(readline.get_line_buffer(), text),
                                                  None] + [None] * number)[number])
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):      # the home folder cannot be written: nothing is remembered
            os.makedirs(folder, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)
