"""The rewriter's files: weights are shared, the source stays, failures leave nothing behind."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import rewrite_models as models
from lean_attention import LeanAttentionError, rewrite
from lean_attention.rewrite.model_file import ModelFile
from rewrite_disk import listing, nodes_of

pytest_plugins = ["rewrite_fixtures"]

GIB = 1 << 30


def test_data_file_is_linked_and_does_not_grow(model, tmp_path):
    data = model.with_name("weights.bin")
    before = listing(model.parent)
    destination = tmp_path / "new" / "deep" / "model.onnx"
    result = rewrite(model, destination)
    assert (result.source, result.destination) == (model, destination)
    assert sorted(listing(destination.parent)) == ["model.onnx", "weights.bin"]
    assert destination.with_name("weights.bin").samefile(data)
    assert listing(model.parent) == before
    assert nodes_of(destination).count("LeanGroupQueryAttention") == 2
    assert destination.stat().st_size < 2 * model.stat().st_size


def test_rewriting_twice_into_one_folder_shares_the_data(model, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        rewrite(model, tmp_path / "new" / name)
    assert sorted(listing(tmp_path / "new")) == ["a.onnx", "b.onnx", "weights.bin"]
    a, b = (tmp_path / "new" / name for name in ("a.onnx", "b.onnx"))
    assert a.read_bytes() == b.read_bytes()
    assert (tmp_path / "new" / "weights.bin").samefile(model.with_name("weights.bin"))


def test_destination_beside_the_source_shares_the_data(model):
    rewrite(model, model.with_name("lean.onnx"))
    assert sorted(listing(model.parent)) == ["lean.onnx", "model.onnx", "weights.bin"]
    assert model.with_name("weights.bin").stat().st_nlink == 1


def test_builder_made_model_rewritten_and_saved_twice_keeps_its_data_and_names(
    tiny_model, tmp_path
):
    source = tiny_model / "model.onnx"
    size = (tiny_model / "model.onnx.data").stat().st_size
    for name in ("a", "b"):
        rewrite(source, tmp_path / name / "model.onnx")
    first, second = (tmp_path / name / "model.onnx" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert (tmp_path / "a" / "model.onnx.data").stat().st_size == size
    graph = onnx.load(first, load_external_data=False).graph
    for names in ([n.name for n in graph.node], [o for n in graph.node for o in n.output if o]):
        assert len(set(names)) == len(names)


def test_data_in_a_subfolder_keeps_its_place(tmp_path):
    (tmp_path / "source" / "data").mkdir(parents=True)
    source = models.save(models.decoder(), tmp_path / "source" / "m.onnx", data="data/w.bin")
    rewrite(source, tmp_path / "new" / "m.onnx")
    assert (tmp_path / "new" / "data" / "w.bin").samefile(tmp_path / "source" / "data" / "w.bin")


def test_data_behind_a_symbolic_link_becomes_a_file_of_the_folder(model, tmp_path):
    blob = tmp_path / "blob"
    model.with_name("weights.bin").rename(blob)
    model.with_name("weights.bin").symlink_to(blob)
    rewrite(model, tmp_path / "new" / "model.onnx")
    linked = tmp_path / "new" / "weights.bin"
    assert linked.samefile(blob)
    assert not linked.is_symlink()


@pytest.fixture
def other_file_system(tmp_path):
    """A folder to which no hard link from the tests' folder can lead."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_data_is_copied_once_where_no_link_is_possible(model, other_file_system):
    rewrite(model, other_file_system / "new" / "model.onnx")
    copied, data = other_file_system / "new" / "weights.bin", model.with_name("weights.bin")
    assert copied.read_bytes() == data.read_bytes()
    assert sorted(listing(other_file_system / "new")) == ["model.onnx", "weights.bin"]


def test_weights_inside_the_model_file_need_no_data_file(tmp_path):
    source = models.save(models.decoder(), tmp_path / "source" / "model.onnx")
    rewrite(source, tmp_path / "new" / "model.onnx")
    assert sorted(listing(tmp_path / "new")) == ["model.onnx"]


def test_model_over_2_gb_is_rewritten_without_loading_its_weights(tmp_path):
    made = models.decoder()
    huge = made.graph.initializer.add(name="huge", data_type=TensorProto.FLOAT, dims=[3, GIB // 4])
    huge.data_location = TensorProto.EXTERNAL
    huge.external_data.add(key="location", value="huge.bin")
    source = models.save(made, tmp_path / "source" / "model.onnx")
    with source.with_name("huge.bin").open("wb") as data:
        data.truncate(3 * GIB)
    code = (
        "import resource, sys; from pathlib import Path; from lean_attention import rewrite;"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize();"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {GIB}, used + {GIB}));"
        "print(rewrite(sys.argv[1], sys.argv[2]))"
    )
    destination = tmp_path / "new" / "model.onnx"
    run = subprocess.run(
        [sys.executable, "-c", code, source, destination], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "2 of 2" in run.stdout
    assert destination.with_name("huge.bin").samefile(source.with_name("huge.bin"))


def test_missing_source(tmp_path, refused):
    refused(tmp_path / "a" / "no.onnx", tmp_path / "b.onnx", "there is no model at")


@pytest.mark.parametrize("content", [b"", b"not a model at all\n" * 9, bytes(range(256))])
def test_file_that_is_not_a_model(content, model, tmp_path, refused):
    model.write_bytes(content)
    refused(model, tmp_path / "new.onnx", "is not a.* ONNX model")


def test_destination_that_exists(model, tmp_path, refused):
    taken = tmp_path / "taken.onnx"
    taken.write_text("mine")
    refused(model, taken, "exists already")
    refused(model, tmp_path, "exists already")
    (tmp_path / "dangling.onnx").symlink_to(tmp_path / "nowhere")
    refused(model, tmp_path / "dangling.onnx", "exists already")


@pytest.mark.parametrize("way", ["same", "dots", "symbolic link", "hard link"])
def test_destination_that_is_the_source(way, model, tmp_path, refused):
    paths = {"same": model, "dots": model.parent / ".." / model.parent.name / model.name}
    destination = paths.get(way, tmp_path / "link.onnx")
    if way == "symbolic link":
        destination.symlink_to(model)
    elif way == "hard link":
        destination.hardlink_to(model)
    refused(model, destination, "is the source itself")


def test_destination_without_a_file_name(model, tmp_path, refused):
    refused(model, tmp_path / "folder", r"for example .*folder/model\.onnx")


def test_destination_folder_holds_other_data_of_that_name(model, tmp_path, refused):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "weights.bin").write_bytes(b"other")
    refused(model, tmp_path / "new" / "model.onnx", r"weights\.bin exists and is not the data file")


def test_destination_named_like_the_data_file(model, tmp_path, refused):
    refused(model, tmp_path / "new" / "weights.bin", "is the name of the model's data file")


def test_data_file_that_is_gone_is_named(model, tmp_path, refused):
    model.with_name("weights.bin").unlink()
    refused(model, tmp_path / "new.onnx", r"weights\.bin, which is gone")


def test_data_file_that_is_cut_short_is_named(model, tmp_path, refused):
    with model.with_name("weights.bin").open("r+b") as data:
        data.truncate(100)
    refused(model, tmp_path / "new.onnx", r"weights\.bin is cut short: 100 bytes")


@pytest.mark.parametrize("location", ["/etc/passwd", "../weights.bin", "a/../../w", ""])
def test_data_outside_the_folder_is_refused(location, model, tmp_path, refused):
    made = onnx.load(model, load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    models.save(made, model)
    refused(model, tmp_path / "new.onnx", "leads out of its folder")


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["-5", "abc", "1e3", "9" * 5000])
def test_external_data_that_is_no_number_is_named(key, value, model, tmp_path, refused):
    made = onnx.load(model, load_external_data=False)
    (entry,) = [e for e in made.graph.initializer[0].external_data if e.key == key]
    entry.value = value
    models.save(made, model)
    refused(model, tmp_path / "new.onnx", f"tensor 'cos' has the {key} '{value}', which is not")


@pytest.mark.parametrize("text", [b"/layer.0/attention", b"past.0.key", b"q.0", b"test"])
def test_text_that_is_not_utf8_is_named(text, model, tmp_path, refused):
    model.write_bytes(model.read_bytes().replace(text, text[:-1] + b"\xff"))
    refused(model, tmp_path / "new.onnx", r"\\xff' is not UTF-8")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_destination_that_no_file_can_have(kind, folder, tmp_path, refused):
    source = folder if kind == "folder" else folder / "model.onnx"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(source, tmp_path / "loop" / source.name, "loop")
    refused(source, tmp_path / f"a\0{source.name}", "null")


@pytest.mark.parametrize("field", ["training", "sparse"])
def test_model_with_parts_that_would_be_lost(field, model, tmp_path, refused):
    made = onnx.load(model, load_external_data=False)
    if field == "training":
        made.training_info.add()
    else:
        made.graph.sparse_initializer.add()
    models.save(made, model)
    refused(model, tmp_path / "new.onnx", "which a rewrite would lose")


def test_invalid_graph_is_one_line(model, tmp_path, refused):
    made = onnx.load(model, load_external_data=False)
    made.graph.node.add().CopyFrom(made.graph.node[0])
    models.save(made, model)
    refused(model, tmp_path / "new.onnx", "is not a valid ONNX model: .*redeclared")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_interrupted_rewrite_leaves_nothing(stop, kind, folder, tmp_path, monkeypatch):
    def write_half(self: ModelFile, path: Path) -> None:
        path.write_bytes(b"half")
        raise stop

    monkeypatch.setattr(ModelFile, "write", write_half)
    source = folder if kind == "folder" else folder / "model.onnx"
    destination = tmp_path / "new" / "deep" / source.name
    before = listing(tmp_path)
    expected = KeyboardInterrupt if stop is KeyboardInterrupt else LeanAttentionError
    with pytest.raises(expected):
        rewrite(source, destination)
    assert listing(tmp_path) == before


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lean_attention", "rewrite", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_command_says_what_was_replaced_and_what_was_left(tmp_path):
    made = models.decoder()
    (node,) = [n for n in made.graph.node if n.name == "/layer.1/attention"]
    node.attribute.append(helper.make_attribute("causal", 0))
    source = models.save(made, tmp_path / "model.onnx")
    run = command(source, tmp_path / "new.onnx", "--schedule", "lean")
    assert run.returncode == 0, run.stderr
    assert "1 of 2 GroupQueryAttention nodes replaced" in run.stdout
    assert "because it attends in both directions (causal=0); the operator" in run.stdout
    assert "is for causal attention:\n    /layer.1/attention" in run.stdout
    assert str(tmp_path / "new.onnx") in run.stdout


def test_command_fails_with_one_line(model, tmp_path):
    run = command(model, model)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert "is the source itself" in run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ending_signal_leaves_nothing(number, folder, tmp_path):
    code = (
        f"import os, signal; signal.signal({number:d}, signal.SIG_DFL); "
        "from lean_attention.__main__ import main; "
        "from lean_attention.rewrite.model_file import ModelFile; "
        f"ModelFile.write = lambda self, path: os.kill(os.getpid(), {number:d}); "
        "main()"
    )
    before = listing(tmp_path)
    arguments = ["rewrite", folder, tmp_path / "deep" / "new"]
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (128 + number, "")
    assert listing(tmp_path) == before


def test_signal_that_the_caller_ignores_stays_ignored(model, tmp_path):
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from lean_attention.__main__ import main; "
        "from lean_attention.rewrite.model_file import ModelFile; write = ModelFile.write; "
        "ModelFile.write = lambda *a: os.kill(os.getpid(), signal.SIGHUP) or write(*a); main()"
    )
    arguments = ["rewrite", model, tmp_path / "new.onnx"]
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_command_prints_square_brackets_of_a_path(model, tmp_path):
    destination = tmp_path / "[bold]new[/x]" / "model.onnx"
    run = command(model, destination)
    assert run.returncode == 0, run.stderr
    assert str(destination) in run.stdout
