"""Names of the hub, against a small server on the loopback address: what is fetched, and what is said when it fails."""
import json
import os
import shutil
import subprocess
import sys

import pytest
from hub_server import HubServer
from places import TESTS

import gomlx
from gomlx._files import hub

pytest.importorskip("huggingface_hub", minversion="1.0", reason="older versions fix their settings when imported")

LLAMA = {name: name.encode() for name in (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "model.safetensors.index.json")}
LLAMA |= {"model-00001-of-00002.safetensors": b"a" * 4000, "model-00002-of-00002.safetensors": b"b" * 3000}
UNWANTED = {"pytorch_model.bin": b"p", "consolidated.safetensors": b"c", "original/params.json": b"o",
            "README.md": b"r",
            "consolidated.00.pth": b"q", "onnx/model.onnx": b"n", "original/model.safetensors": b"s"}
GGUFS = {"tiny-Q4_K_M.gguf": b"4" * 500, "tiny-Q8_0.gguf": b"8" * 900, "mmproj-tiny-F16.gguf": b"m", "README.md": b"r",
         "tiny-F16-00001-of-00002.gguf": b"1" * 100, "tiny-F16-00002-of-00002.gguf": b"2" * 100}


@pytest.fixture
def server(monkeypatch, tmp_path):
    from huggingface_hub import constants
    made = HubServer()
    made.repos = {"org/llama": LLAMA | UNWANTED, "org/tiny-GGUF": GGUFS, "org/bin": {"pytorch_model.bin": b"p"}}
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", made.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)      # huggingface_hub waits between its attempts
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def offline(monkeypatch):
    from huggingface_hub import constants
    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_folder_is_fetched_without_what_is_not_needed(server):
    folder = hub.fetch("org/llama")
    assert sorted(os.listdir(folder)) == sorted(LLAMA)
    assert sorted(server.fetched) == sorted(LLAMA)
    with open(os.path.join(folder, "model-00002-of-00002.safetensors"), "rb") as file:
        assert file.read() == b"b" * 3000
    hub.fetch("org/llama")
    assert sorted(server.fetched) == sorted(LLAMA)               # the second time nothing is


@pytest.mark.parametrize("name, files", [
    ("org/tiny-GGUF", ["tiny-Q4_K_M.gguf"]),
    ("org/tiny-GGUF:Q4_K_M", ["tiny-Q4_K_M.gguf"]),
    ("org/tiny-GGUF:q8_0", ["tiny-Q8_0.gguf"]),
    ("org/tiny-GGUF/tiny-Q8_0.gguf", ["tiny-Q8_0.gguf"]),
    ("org/tiny-GGUF:F16", ["tiny-F16-00001-of-00002.gguf", "tiny-F16-00002-of-00002.gguf"]),
])
def test_of_ggufs_one_type_is_fetched_with_all_its_parts(server, name, files):
    path = hub.fetch(name)
    assert os.path.basename(path) == files[0] and os.path.exists(path)
    assert sorted(server.fetched) == files


def test_a_missing_type_names_those_that_are_there(server):
    with pytest.raises(ValueError, match="no GGUF of type Q5_K_M; it has F16, Q4_K_M, Q8_0"):
        hub.fetch("org/tiny-GGUF:Q5_K_M")
    with pytest.raises(ValueError, match="has no file 'other.gguf'"):
        hub.fetch("org/tiny-GGUF/other.gguf")


def test_an_ambiguous_type_names_the_choices(server):
    server.repos["org/two"] = {"a-Q8_0.gguf": b"a", "b-Q8_0.gguf": b"b"}
    with pytest.raises(ValueError, match="org/two/a-Q8_0.gguf, org/two/b-Q8_0.gguf"):
        hub.fetch("org/two:Q8_0")


def test_a_split_model_with_a_part_missing_is_refused(server):
    server.repos["org/part"] = {"x-Q8_0-00001-of-00003.gguf": b"a", "x-Q8_0-00003-of-00003.gguf": b"b"}
    with pytest.raises(ValueError, match="split GGUF of 3 files, of which 2"):
        hub.fetch("org/part:Q8_0")


def test_a_repository_without_a_model(server):
    with pytest.raises(ValueError,
                       match="neither GGUF files nor config.json with safetensors; it has pytorch_model.bin"):
        hub.fetch("org/bin")


def test_a_missing_repository(server):
    with pytest.raises(FileNotFoundError, match="no model 'org/none'.*HF_TOKEN"):
        gomlx.load("org/none")


def test_a_gated_repository(server):
    server.gated.add("org/llama")
    with pytest.raises(PermissionError, match="'org/llama' is gated: accept its terms.*HF_TOKEN"):
        hub.fetch("org/llama")


def test_a_failing_server(server):
    server.fail = 500
    with pytest.raises(OSError, match="cannot reach the hub for 'org/llama', and the cache does not have it"):
        hub.fetch("org/llama")


def test_a_failing_server_does_not_matter_for_what_is_cached(server, caplog):
    folder = hub.fetch("org/llama")
    server.fail = 503
    assert hub.fetch("org/llama") == folder
    assert "using what the cache has" in caplog.text


def test_a_truncated_file_is_an_error_and_is_fetched_again(server):
    server.cut.add("model-00001-of-00002.safetensors")
    with pytest.raises(OSError, match="'org/llama'.*(cut short|interrupted)"):
        hub.fetch("org/llama")
    server.cut.clear()
    folder = hub.fetch("org/llama")
    assert os.path.getsize(os.path.join(folder, "model-00001-of-00002.safetensors")) == 4000


def test_offline_without_a_cache_asks_nobody(server, offline):
    offline()
    with pytest.raises(OSError, match="'org/llama', and the cache does not have it.*HF_HUB_OFFLINE"):
        hub.fetch("org/llama")
    assert server.requests == []


def test_offline_with_a_cache(server, offline):
    folder = hub.fetch("org/llama")
    path = hub.fetch("org/tiny-GGUF:Q8_0")
    offline()
    server.requests.clear()
    assert hub.fetch("org/llama") == folder
    assert hub.fetch("org/tiny-GGUF:Q8_0") == path
    with pytest.raises(OSError, match="cache is incomplete.*no GGUF of type Q4_K_M; it has Q8_0"):
        hub.fetch("org/tiny-GGUF:Q4_K_M")
    assert server.requests == []


def test_a_dead_server(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match="cannot reach the hub for 'org/llama'"):
        hub.fetch("org/llama")


def test_listing_and_removing(server):
    assert hub.cached() == []
    hub.fetch("org/tiny-GGUF:Q8_0")
    hub.fetch("org/llama")
    listed = {one["name"]: one for one in hub.cached()}
    assert listed.keys() == {"org/tiny-GGUF", "org/llama"}
    assert listed["org/tiny-GGUF"]["bytes"] == 900 and listed["org/tiny-GGUF"]["gguf"] == ["tiny-Q8_0.gguf"]
    assert hub.remove("org/tiny-GGUF") == 900
    assert [one["name"] for one in hub.cached()] == ["org/llama"]
    with pytest.raises(FileNotFoundError, match="no model 'org/tiny-GGUF'"):
        hub.remove("org/tiny-GGUF")


def test_what_the_cache_holds_is_verified(server, capfd):
    from gomlx import cli
    index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                       "b": "model-00002-of-00002.safetensors"}}).encode()
    server.repos["org/llama"] = server.repos["org/llama"] | {"model.safetensors.index.json": index}
    folder = hub.fetch("org/llama")
    hub.fetch("org/tiny-GGUF:F16")
    told = []
    for found, files in ((hub.verify("org/llama", told.append), 8), (hub.verify("org/tiny-GGUF:F16"), 2)):
        assert found == hub.Verified({}, [], files)
    assert told == sorted(told) and told[-1] == 1.0
    status = cli.main(["models", "verify", "--json"])
    names = ["fable", "org/llama", "org/tiny-GGUF"]
    assert status == 0 and json.loads(capfd.readouterr().out)["models"] == [
        {"name": one, "state": "good", "checked": how, "problems": {}, "unchecked": []}
        for one, how in zip(names, ("headers", "hashes", "hashes"))]
    weights = os.path.join(folder, "model-00001-of-00002.safetensors")
    with open(os.path.realpath(weights), "r+b") as file:            # one bit, of a file that is as long as it was
        file.seek(100)
        file.write(b"b")
    with open(os.path.realpath(os.path.join(folder, "config.json")), "ab") as file:
        file.write(b" ")
    os.remove(os.path.join(folder, "model-00002-of-00002.safetensors"))
    os.remove(os.path.realpath(os.path.join(folder, "tokenizer.json")))
    found = hub.verify("org/llama").problems
    assert list(found) == ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "tokenizer.json"]
    assert found["config.json"].startswith("its sha1 is ") and "models rm org/llama" in found["config.json"]
    assert found["model-00001-of-00002.safetensors"].startswith("its sha256 is ")
    assert found["model-00002-of-00002.safetensors"] == "is missing"
    assert found["tokenizer.json"] == "its content is not in the cache"
    status = cli.main(["models", "verify", "org/llama", "org/tiny-GGUF"])
    out, err = capfd.readouterr()
    assert status == 1 and states(out) == {"org/llama": "corrupted", "org/tiny-GGUF": "good"}
    assert err.count("gomlx: org/llama: ") == 5
    with pytest.raises(FileNotFoundError, match="no model 'org/none'"):
        hub.verify("org/none")


def test_a_part_of_a_split_model_that_is_not_there(server):
    path = hub.fetch("org/tiny-GGUF:F16")
    os.remove(os.path.join(os.path.dirname(path), "tiny-F16-00002-of-00002.gguf"))
    assert hub.verify("org/tiny-GGUF").problems == {"tiny-F16-00002-of-00002.gguf": "is missing"}


def run(capfd, *argv):
    from gomlx import cli
    status = cli.main(list(argv))
    return status, *capfd.readouterr()


def states(out):
    return {line[13:]: line[:13].strip() for line in out.splitlines()}


def test_verify_says_what_was_not_checked_and_goes_on(server, capfd):
    """Copies are not named by their hash; what has no files is not good; an unknown name does not end it."""
    folder = hub.fetch("org/llama")
    copied = os.path.join(folder, "config.json")
    content = os.path.realpath(copied)
    os.remove(copied)
    shutil.copy(content, copied)
    hub.fetch("org/tiny-GGUF:F16")
    base = os.path.dirname(os.path.dirname(os.path.dirname(folder)))
    os.makedirs(os.path.join(base, "models--org--empty", "snapshots", "a" * 40))
    os.makedirs(os.path.join(base, "models--plain", "snapshots", "b" * 40))
    with open(os.path.join(base, "models--plain", "snapshots", "b" * 40, "x.gguf"), "wb") as file:
        file.write(b"GGUF")
    status, out, err = run(capfd, "models", "verify", "org/none", "org/llama", "org/empty", "plain",
                           "org/tiny-GGUF:F16")
    assert status == 1 and states(out) == {
        "org/none": "not found", "org/llama": "part checked", "org/empty": "empty", "plain": "not checked",
        "org/tiny-GGUF:F16": "good"}
    assert "org/none: the cache has no model 'org/none'" in err
    assert "org/llama: config.json: not checked: no hash" in err
    assert f"org/empty: snapshots/{'a' * 40}: is empty" in err
    assert run(capfd, "models", "verify", "plain", "org/tiny-GGUF")[0] == 0
    status, out, _ = run(capfd, "models", "verify")
    assert status == 1 and states(out) == {
        "fable (headers and lengths)": "good", "org/empty": "empty", "org/llama": "part checked",
        "org/tiny-GGUF": "good", "plain": "not checked"}


def test_what_the_hub_calls_corrupted_is_verified_and_removed(server, capfd):
    """A content that is gone, and a model without snapshots: huggingface_hub's scan leaves both out."""
    folder = hub.fetch("org/llama")
    hub.fetch("org/tiny-GGUF:Q8_0")
    os.remove(os.path.realpath(os.path.join(folder, "config.json")))
    base = os.path.dirname(os.path.dirname(os.path.dirname(folder)))
    os.makedirs(os.path.join(base, "models--org--bare", "blobs"))
    with open(os.path.join(base, "models--org--bare", "blobs", "0" * 64), "wb") as file:
        file.write(bytes(700))
    assert [one["name"] for one in hub.cached()] == ["org/tiny-GGUF"]
    assert set(hub.corrupted()) == {"org/llama", "org/bare"}
    status, out, err = run(capfd, "models", "verify")
    assert status == 1 and states(out) == {"fable (headers and lengths)": "good", "org/bare": "corrupted",
                                           "org/llama": "corrupted", "org/tiny-GGUF": "good"}
    assert "org/bare: corrupted: " in err and "org/llama: corrupted: " in err
    assert "org/llama: config.json: its content is not in the cache" in err
    status, _, err = run(capfd, "models")
    assert status == 0 and "corrupted: org/bare: " in err and "gomlx models rm org/llama" in err
    status, _, err = run(capfd, "models", "rm", "org/none", "org/bare", "org/llama")
    assert status == 1 and "error: the cache has no model 'org/none'" in err and "removed org/bare, 0.7 kB" in err
    assert "removed org/llama" in err and hub.corrupted() == {}
    assert run(capfd, "models", "verify")[0] == 0

@pytest.mark.parametrize("text, is_one", [
    ("org/name", True), ("org/name:Q4_K_M", True), ("org/name/sub/file.gguf", True),
    ("TheBloke/Llama-2-7B-GGUF:Q8_0", True),
    ("name", False), ("./org/name", False), ("/org/name", False), ("folder/file.gguf", False), ("a/b/c", False),
    ("org/name:", False), ("../name", False),
])
def test_what_a_name_looks_like(text, is_one):
    assert hub.is_name(text) is is_one


def test_the_environment_is_honoured(server, tmp_path):
    """Through the command line, in a fresh process: HF_ENDPOINT and HF_HOME."""
    environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    program = ("import json, sys; from gomlx import cli; from gomlx._files import hub; "
               "hub.fetch('org/tiny-GGUF:Q8_0'); "
               "sys.exit(cli.main(['models', '--json']))")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120,
                          cwd=TESTS)
    assert done.returncode == 0, done.stderr
    names = [one["name"] for one in json.loads(done.stdout)["models"]]
    assert names == ["fable", "org/tiny-GGUF"]
    assert done.stderr == ""
    assert (tmp_path / "home" / "hub" / "models--org--tiny-GGUF").is_dir()
