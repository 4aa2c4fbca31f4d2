"""Sources on the Hugging Face Hub, which a local server stands in for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rewrite_models as models
from hub_server import COMMIT, hub
from lean_attention.rewrite.hub import HubSource, find_source
from rewrite_disk import listing, nodes_of

pytest_plugins = ["rewrite_fixtures"]

IDS = {
    "org/name": ("org/name", "", None),
    "org/name/sub/folder": ("org/name", "sub/folder", None),
    "org/name@v1": ("org/name", "", "v1"),
    "org/name/sub@refs/pr/1": ("org/name", "sub", "refs/pr/1"),
    "org/name/sub/model.onnx": ("org/name", "sub/model.onnx", None),
    "O-rg.1/na_me-2.0": ("O-rg.1/na_me-2.0", "", None),
}


@pytest.mark.parametrize("text", IDS)
def test_ids_are_read(text):
    source = HubSource.parse(text)
    assert (source.repo, source.path, source.revision) == IDS[text]
    assert str(source) == text


@pytest.mark.parametrize(
    "text",
    ["name", "/org/name", "./org/name", "../org/name", "~/name", "org//name", "org/name/", ""],
)
def test_paths_are_no_ids(text):
    assert HubSource.parse(text) is None


def test_subfolder_comes_after_what_the_id_names():
    assert HubSource.parse("org/name/a@v1", "b/c").path == "a/b/c"


def test_existing_path_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name" / "sub").mkdir(parents=True)
    assert find_source("org/name") == tmp_path / "org" / "name"
    assert find_source("org/name", "sub") == tmp_path / "org" / "name" / "sub"


def test_file_that_is_missing_is_no_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_source("folder/model.onnx") == tmp_path / "folder" / "model.onnx"


@pytest.fixture
def repository(folder) -> Path:
    """A repository with a model folder at its top and in two folders, and much beside."""
    (folder / "model.safetensors").write_bytes(b"weights of another format")
    (folder / "README.md").write_text("# A model")
    for name in ("cpu/int4", "cuda"):
        (folder / name).mkdir(parents=True)
        for file in ("genai_config.json", "tokenizer.json", "model.onnx", "weights.bin"):
            (folder / name / file).write_bytes((folder / file).read_bytes())
    return folder


def run_rewrites(address: str, place: Path, *calls: list[str], **environment: str) -> list[str]:
    """Runs several rewrites in one process; returns each one's destination or error."""
    code = (
        "import json, sys\n"
        "from lean_attention import LeanAttentionError, rewrite\n"
        "for source, destination, subfolder in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        done = rewrite(source, destination, subfolder=subfolder)\n"
        "        print(done.destination if done.verification.passed else done)\n"
        "    except LeanAttentionError as error:\n"
        "        print('error:', error)\n"
    )
    variables = {"HF_ENDPOINT": address, "HF_HOME": str(place / "hub"), "HF_HUB_ETAG_TIMEOUT": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(calls)],
        cwd=place,
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_models_of_the_hub_are_rewritten_and_only_they_are_downloaded(repository, tmp_path):
    data = models.save(models.decoder(), tmp_path / "other" / "big.onnx", data="big.onnx.data")
    place = tmp_path / "place"
    place.mkdir()
    with hub({"org/name": repository, "org/file": data.parent}) as (address, downloaded):
        calls = [["org/name/cpu/int4@v1", "a", ""], ["org/name", "b", "cpu/int4"]]
        assert run_rewrites(address, place, *calls) == [str(place / "a"), str(place / "b")]
        names = ("genai_config.json", "tokenizer.json", "model.onnx", "weights.bin")
        assert sorted(downloaded) == sorted(f"cpu/int4/{name}" for name in names)
        downloaded.clear()
        calls = [["org/file/big.onnx", "c/model.onnx", ""], ["org/name", "d", ""]]
        assert run_rewrites(address, place, *calls) == [
            str(place / n) for n in ("c/model.onnx", "d")
        ]
        assert "big.onnx.data" in downloaded
        unwanted = {"README.md", "model.safetensors", "cuda/model.onnx", "extra/template.jinja"}
        assert not unwanted & {*downloaded}
    assert nodes_of(place / "a" / "model.onnx").count("LeanGroupQueryAttention") == 2
    snapshot = place / "hub" / "hub" / "models--org--name" / "snapshots" / COMMIT / "cpu" / "int4"
    assert (place / "a" / "weights.bin").samefile(snapshot / "weights.bin")
    # What is downloaded once is there without the Hub.
    offline = [["org/name/cpu/int4@v1", "e", ""]]
    assert run_rewrites(address, place, *offline, HF_HUB_OFFLINE="1") == [str(place / "e")]


def test_what_cannot_be_had_is_one_line_each(repository, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with hub({"org/name": repository, "org/gated": None}) as (address, _):
        calls = [
            ["org/nothing", "new", ""],
            ["org/gated", "new", ""],
            ["org/name@v9", "new", ""],
            ["org/name/extra", "new", ""],
        ]
        lines = run_rewrites(address, place, *calls)
    expected = [
        "there is no org/nothing here, and the Hub has no repository org/nothing",
        "org/gated asks you to agree to its terms",
        "org/name has no revision v9",
        "has no ONNX model at extra; it has models at org/name/cpu/int4, org/name/cuda",
    ]
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert line.startswith("error: ")
        assert part in line
    assert "new" not in listing(place)


@pytest.mark.parametrize("way", ["offline", "unreachable", "not installed"])
def test_hub_that_is_out_of_reach(way, tmp_path):
    # Nothing listens there.
    address, environment = "http://127.0.0.1:9", {}
    if way == "offline":
        environment = {"HF_HUB_OFFLINE": "1"}
    elif way == "not installed":
        (tmp_path / "huggingface_hub.py").write_text("raise ImportError('not here')")
        environment = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    (line,) = run_rewrites(address, tmp_path, ["org/name", "new", ""], **environment)
    expected = (
        "pip install 'lean-attention[hub]'" if way == "not installed" else "cannot be reached"
    )
    assert line.startswith("error: there is no org/name here, and ")
    assert expected in line
