"""Models by their names on the Hugging Face hub: which files a name needs, fetching them, and the cache.

huggingface_hub does the work, so its cache, HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE mean here what they mean
there. Only the files that are needed are fetched, and they are checked against the sizes that the hub gave.
"""
import contextlib
import glob
import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass, field

NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*?(?<!\.gguf)(?<!\.safetensors))"
                  r"(?::(?P<type>[\w.-]+)|/(?P<file>[^:]+\.gguf))?")
SPLIT = re.compile(r"-(?P<part>\d{5})-of-(?P<count>\d{5})$")
GGUF_TYPE = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|MXFP4\w*))(?=$|[-./])", re.I)
DEFAULT_TYPE = "Q4_K_M"
FOLDER_FILES = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "model.safetensors.index.json"}
log = logging.getLogger("gomlx")


def is_name(text):
    return NAME.fullmatch(text) is not None


def fetch(name, show_bars=False):
    """The local path of a model of the hub: a folder, or a GGUF file (of split ones the first)."""
    import huggingface_hub
    from huggingface_hub import constants
    parts = NAME.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name!r} is not a name of the hub, which looks like 'org/name' or 'org/name:Q4_K_M'")
    repo = parts["repo"]
    with hub_errors(repo):
        try:
            sizes = {one.rfilename: one.size
                     for one in huggingface_hub.HfApi().model_info(repo, files_metadata=True).siblings or ()}
        except Exception as error:
            if not unreachable(error):
                raise
            return from_cache(repo, parts, error)
        files = choose(repo, sizes, parts["type"], parts["file"])
        with bars(show_bars):
            folder = huggingface_hub.snapshot_download(repo, cache_dir=constants.HF_HUB_CACHE,
                                                       allow_patterns=[glob.escape(file) for file in files])
    for file in files:
        check_size(repo, os.path.join(folder, file), sizes[file])
    return path_of(folder, files)


def from_cache(repo, parts, reason):
    """What the cache holds of a model when the hub cannot be reached."""
    folder = cached_folder(repo)
    if folder is None:
        raise OSError(f"cannot reach the hub for {repo!r}, and the cache does not have it: {brief(reason)}; "
                      "connect (or unset HF_HUB_OFFLINE), or name a folder or .gguf file")
    sizes = {os.path.relpath(os.path.join(where, file), folder): None for where, _, names in os.walk(folder)
             for file in names}
    try:
        files = choose(repo, sizes, parts["type"], parts["file"])
    except ValueError as error:
        raise OSError(f"cannot reach the hub ({brief(reason)}), and the cache is incomplete: {error}") from None
    log.warning("cannot reach the hub, using what the cache has of %s: %s", repo, brief(reason))
    return path_of(folder, files)


def path_of(folder, files):
    return os.path.join(folder, files[0]) if files[0].endswith(".gguf") else folder


def choose(repo, names, gguf_type=None, file=None):
    """The files that are needed, of GGUF the first part first. ValueError says what there is instead."""
    if file is not None:
        models = [model for model in gguf_models(names) if file in model]
        if not models:
            raise ValueError(f"{repo!r} has no file {file!r}; it has {listing(names)}")
        return complete(repo, models[0])
    models = gguf_models(names)
    if gguf_type is None:
        weights = [name for name in names if name.endswith(".safetensors") and "/" not in name
                   and not name.startswith("consolidated")]
        if weights and "config.json" in names:
            return sorted(FOLDER_FILES.intersection(names)) + sorted(weights)
        if len(models) == 1:
            return complete(repo, models[0])
        gguf_type = DEFAULT_TYPE
        if not models:
            raise ValueError(f"{repo!r} has neither GGUF files nor config.json with safetensors; it has "
                             f"{listing(names)}")
        log.info("%s: no GGUF type was named, using %s", repo, gguf_type)
    exactly = re.compile(rf"(?:^|[-._/]){re.escape(gguf_type)}(?=$|[-./])", re.I)
    matching = [model for model in models if exactly.search(SPLIT.sub("", model[0][:-len(".gguf")]))]
    if not matching:
        raise ValueError(f"{repo!r} has no GGUF of type {gguf_type}; it has {listing(names)}")
    if len(matching) > 1:
        raise ValueError(f"{repo!r} has several GGUFs of type {gguf_type}, name one: "
                         + ", ".join(f"{repo}/{model[0]}" for model in matching))
    return complete(repo, matching[0])


def gguf_models(names):
    """The GGUF models among file names, each as the list of its parts in order; image projectors are left out."""
    models = {}
    for name in sorted(names):
        if name.endswith(".gguf") and not os.path.basename(name).startswith("mmproj"):
            models.setdefault(SPLIT.sub("", name[:-len(".gguf")]), []).append(name)
    return list(models.values())


def complete(repo, parts):
    """Returns parts; ValueError if one of a split model's files is missing."""
    split = SPLIT.search(parts[0][:-len(".gguf")])
    if split and (len(parts) != int(split["count"]) or int(split["part"]) != 1):
        raise ValueError(f"{repo!r}: a split GGUF of {int(split['count'])} files, of which {len(parts)} are there: "
                         + ", ".join(parts))
    return parts


def listing(names):
    """The contents of a repository for a message: its GGUF types, or else its files."""
    types = sorted({found[-1] for model in gguf_models(names)
                    if (found := GGUF_TYPE.findall(SPLIT.sub("", model[0][:-len(".gguf")])))})
    files = sorted(names)
    return ", ".join(types) if types else ", ".join(files[:20]) + (", ..." if len(files) > 20 else "") or "no files"


def check_size(repo, path, size):
    cure = f"remove it with 'gomlx models rm {repo}' and load it again"
    if not os.path.exists(path):
        raise OSError(f"{repo!r}: {os.path.basename(path)} was not downloaded; {cure}")
    if size is not None and os.path.getsize(path) != size:
        raise OSError(f"{repo!r}: {os.path.basename(path)} has {os.path.getsize(path)} bytes, the hub says {size}: "
                      f"the download was cut short; {cure}")


def unreachable(error):
    """Whether the hub could not be reached, as opposed to having refused."""
    from huggingface_hub import errors
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HfHubHTTPError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return status is not None and status >= 500
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)):
        return True
    # The HTTP library below differs between versions of huggingface_hub; its own class names do not.
    return any(kind.__name__ in ("TransportError", "RequestException") for kind in type(error).__mro__)


@contextlib.contextmanager
def hub_errors(repo):
    """Turns what huggingface_hub raises into errors that name the model and what to do."""
    from huggingface_hub import errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise PermissionError(f"{repo!r} is gated: accept its terms on the hub and set HF_TOKEN; "
                              f"{brief(error)}") from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(f"the hub has no model {repo!r}, or it is private: check the name, or set "
                                "HF_TOKEN") from error
    except errors.HFValidationError as error:
        raise ValueError(f"{repo!r} is not a name of the hub: {brief(error)}") from error
    except Exception as error:
        if unreachable(error) or "Consistency check failed" in str(error):
            raise OSError(f"{repo!r}: the download was interrupted, load it again to resume: {brief(error)}") from error
        if isinstance(error, errors.HfHubHTTPError):
            raise OSError(f"{repo!r}: the hub answered with an error: {brief(error)}") from error
        raise


def brief(error):
    """An exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


@contextlib.contextmanager
def bars(show):
    """The hub's progress bars, only where they are requested."""
    from huggingface_hub import utils
    if show or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def cached_folder(repo):
    """The newest snapshot of a model in the cache, or None."""
    base = model_folder(repo)
    try:
        with open(os.path.join(base, "refs", "main"), encoding="ascii") as ref:
            folder = os.path.join(base, "snapshots", ref.read().strip())
    except OSError:
        return None
    return folder if os.path.isdir(folder) else None


def cached():
    """The cached models: [{"name", "bytes", "path", "gguf": [files]}], largest first."""
    found = []
    info = cache_info()
    for repo in info.repos if info else ():
        if repo.repo_type == "model":
            files = {file.file_name for revision in repo.revisions for file in revision.files}
            found.append({"name": repo.repo_id, "bytes": repo.size_on_disk, "path": str(repo.repo_path),
                          "gguf": sorted(file for file in files if file.endswith(".gguf"))})
    return sorted(found, key=lambda one: (-one["bytes"], one["name"]))


def corrupted():
    """{name: why} of the cached models that huggingface_hub calls corrupted: cached() does not have them."""
    from huggingface_hub import constants
    info = cache_info()
    if info is None:
        return {}
    base, readable = os.path.realpath(constants.HF_HUB_CACHE), {str(one.repo_path) for one in info.repos}
    found = {}
    for entry in sorted(os.listdir(base)):
        path = os.path.join(base, entry)
        if entry.startswith(PREFIX) and path not in readable:
            named = re.compile(re.escape(path) + r"(?![\w.-])")
            found[entry[len(PREFIX):].replace("--", "/")] = next(
                (brief(one) for one in info.warnings if named.search(str(one))), "it cannot be read")
    return found


HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
PREFIX = "models--"                             # of a model's folder in the cache


def repo_of(name):
    """The repository of a name, without its type or file."""
    parts = NAME.fullmatch(name)
    return parts["repo"] if parts else name


def model_folder(repo):
    from huggingface_hub import constants
    return os.path.join(constants.HF_HUB_CACHE, PREFIX + repo.replace("/", "--"))


@dataclass
class Verified:
    """What verify() found of a cached model."""
    problems: dict[str, str] = field(default_factory=dict)      # {file: what is wrong with it}
    unchecked: list[str] = field(default_factory=list)          # files that have no hash in the cache
    files: int = 0


def verify(repo, progress=None):
    """What is wrong with a cached model; the hub is not asked. In the cache a file's content is named by its hash:
    SHA-256 of large files, git's SHA-1 of small ones; copies under other names cannot be checked. repo: a name of the
    hub, of which all that is cached is read. progress: called with a number from 0 to 1."""
    repo = repo_of(repo)
    base = os.path.join(model_folder(repo), "snapshots")
    if not os.path.lexists(model_folder(repo)):
        raise FileNotFoundError(f"the cache has no model {repo!r}; 'gomlx models' lists what it has")
    found, contents = Verified(), {}
    for snapshot in sorted(os.listdir(base)) if os.path.isdir(base) else ():
        folder = os.path.join(base, snapshot)
        names = sorted(os.path.relpath(os.path.join(where, one), folder)
                       for where, _, files in os.walk(folder) for one in files)
        for name in names:
            contents.setdefault(os.path.realpath(os.path.join(folder, name)), name)
        found.problems |= dict.fromkeys(missing(folder, names), "is missing")
        if not names:
            found.problems[f"snapshots/{snapshot}"] = "is empty"
    if not contents and not found.problems:
        found.problems["snapshots"] = "there are none"
    found.files = len(contents)
    check_hashes(repo, contents, found, progress)
    found.problems = dict(sorted(found.problems.items()))
    return found


def check_hashes(repo, contents, found, progress):
    """contents: {path of a file's content: its name in the model}."""
    sizes = {path: os.path.getsize(path) if os.path.isfile(path) else 0 for path in contents}
    whole, done = max(1, sum(sizes.values())), 0
    for path, name in contents.items():
        expected = os.path.basename(path)
        if not os.path.isfile(path):
            found.problems[name] = "its content is not in the cache"
        elif not HASH.fullmatch(expected):
            found.unchecked.append(name)
        else:
            digest = hashlib.sha256() if len(expected) == 64 else hashlib.sha1(b"blob %d\0" % sizes[path])
            with open(path, "rb") as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
                    done += len(piece)
                    if progress is not None:
                        progress(min(1.0, done / whole))
            if (read := digest.hexdigest()) != expected:
                found.problems[name] = f"its {digest.name} is {read[:12]}..., expected {expected[:12]}...; " \
                    f"remove it with 'gomlx models rm {repo}' and load it again"


def missing(folder, names):
    """Files that others of a snapshot need: shards of an index, parts of a split GGUF."""
    found = []
    if "model.safetensors.index.json" in names:
        try:
            with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
                shards = sorted({str(one) for one in json.load(file)["weight_map"].values()})
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            shards = []                         # verify() reports a damaged index by its hash
        found += [one for one in shards if one not in names]
    for parts in gguf_models(names):
        split = SPLIT.search(parts[0][:-len(".gguf")])
        if split and int(split["count"]) <= 99999:
            stem = SPLIT.sub("", parts[0][:-len(".gguf")])
            needed = [f"{stem}-{i:05}-of-{split['count']}.gguf" for i in range(1, int(split["count"]) + 1)]
            found += [one for one in needed if one not in names]
    return found


def remove(repo):
    """Removes a model from the cache, a corrupted one too; returns the bytes that this frees."""
    info = cache_info()
    for one in info.repos if info else ():
        if one.repo_type == "model" and one.repo_id == repo:
            strategy = info.delete_revisions(*(revision.commit_hash for revision in one.revisions))
            freed = max(strategy.expected_freed_size, one.size_on_disk)
            strategy.execute()
            return freed
    if repo in corrupted():
        return remove_folder(model_folder(repo))
    raise FileNotFoundError(f"the cache has no model {repo!r}; 'gomlx models' lists what it has")


def remove_folder(path):
    """Removes a folder, or the file or link of that name; returns the bytes of the files in it."""
    if os.path.islink(path) or not os.path.isdir(path):
        freed = os.lstat(path).st_size
        os.remove(path)
        return freed
    freed = sum(os.lstat(os.path.join(where, one)).st_size for where, _, files in os.walk(path) for one in files
                if not os.path.islink(os.path.join(where, one)))
    shutil.rmtree(path)
    return freed


def cache_info():
    """huggingface_hub's view of its cache; None when there is no cache yet."""
    import huggingface_hub
    from huggingface_hub import constants
    try:
        return huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    except huggingface_hub.CacheNotFound:
        return None
