"""An extension of griffe, which reads docstrings for mkdocstrings: gomlx's are plain text, made for help(). A line
"name   what it is" becomes an item of a list, and what Markdown would take for markup is escaped."""
import ast
import dataclasses
import inspect
import re
import sys

import griffe

ROW = re.compile(r"(\S(?:.{0,45}?\S)?) {2,}(\S.*)$")      # an argument's name, at least two spaces, its description
CODE = re.compile(r"(`[^`]*`)")


def escaped(text):
    """The text with nothing in it that Markdown reads, but for what stands between backticks."""
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]<>|\\])", r"\\\1", part)
                   for part in CODE.split(text))


def markdown(docstring):
    """Paragraphs, indented code and tables of arguments, as Markdown."""
    made, state = [], "text"
    for line in docstring.expandtabs().split("\n"):
        row = ROW.fullmatch(line) if line[:1].strip() else None
        if not line.strip():
            made.append("")
            state = "blank" if state != "code" else "code"
        elif line.startswith("    ") and state in ("blank", "code"):
            made.append(line)
            state = "code"
        elif row:
            made += [""] * (state != "row") + [f"- `{row[1]}`: {escaped(row[2])}"]
            state = "row"
        elif line.startswith(" ") and state == "row":
            made.append("  " + escaped(line.strip()))
        else:
            made += [""] * (state == "row") + [escaped(line.strip())]
            state = "text"
    return "\n".join(made)


def fields(kind):
    """The fields of a dataclass as items of a list, with the comments beside or above them in its source."""
    made, above = [], ""
    for line in source_of(kind).split("\n"):
        field = re.match(r"    (\w+): ([^=#]+?)(?: = .*?)?(?:\s+# *(.*))?$", line)
        if field and field[1] in kind.__dataclass_fields__:
            made.append(f"- `{field[1]}: {field[2]}`" + f": {escaped(field[3] or above)}" * bool(field[3] or above))
        above = (above + " " + line.strip(" #")).strip() if line.strip().startswith("#") else ""
    return "\n".join(made)


def source_of(kind):
    """A class's source. Its __module__ is where users import it from, so all of gomlx's modules are asked."""
    for name, module in sorted(sys.modules.items()):
        own = name.startswith("gomlx") and vars(module).get(kind.__name__) is kind
        if own and (path := inspect.getsourcefile(module)):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                    return ast.get_source_segment(text, node)
    raise OSError(f"{kind}: no module of gomlx has its source")


class PlainDocstrings(griffe.Extension):
    def on_instance(self, *, node, obj, agent, **kwargs):
        if isinstance(agent, griffe.Inspector) and obj.is_attribute and "property" not in obj.labels:
            obj.docstring = None                # a constant's would be its type's: "dict() -> new empty dictionary"
        if obj.docstring is None:
            return
        kind = getattr(node, "obj", None)
        obj.docstring.value = markdown(obj.docstring.value)
        # that tells its own
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__name__ != "Sampling":
            obj.docstring.value += "\n\n" + fields(kind)
