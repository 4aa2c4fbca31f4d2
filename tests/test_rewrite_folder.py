"""The rewriter's model folders: complete, runnable, writable, and none half-written."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lean_attention import LeanAttentionError, rewrite
from lean_attention.rewrite import model_folder
from lean_attention.rewrite.files import staging_folder
from lean_attention.rewrite.model_file import ModelFile
from rewrite_disk import listing, nodes_of, write_json

pytest_plugins = ["rewrite_fixtures"]


def test_folder_names_the_library_and_is_complete(folder, library, tmp_path):
    before = listing(folder)
    result = rewrite(folder, tmp_path / "new")
    after = listing(tmp_path / "new")
    assert listing(folder) == before
    assert set(after) == {*before, "liblean_attention.so"}
    assert after["liblean_attention.so"] == library.read_bytes()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"genai_config.json", "model.onnx"}
    assert nodes_of(tmp_path / "new" / "model.onnx").count("LeanGroupQueryAttention") == 2
    assert len(result.replaced) == 2

    old = before["genai_config.json"].decode()
    new = after["genai_config.json"].decode()
    comma = '"provider_options": []'
    added = ',\n                "custom_ops_library": "liblean_attention.so"'
    assert new == old.replace(comma, comma + added)


def test_folder_shares_weights_and_copies_what_one_may_edit(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(model_folder, "LINK_FROM_BYTES", 1 << 20)
    (folder / "vision.onnx.data").write_bytes(bytes(1 << 20))
    rewrite(folder, tmp_path / "new")
    shared = {
        path.name
        for path in folder.rglob("*")
        if path.is_file() and path.samefile(tmp_path / "new" / path.relative_to(folder))
    }
    assert shared == {"weights.bin", "vision.onnx.data"}


def test_folder_keeps_the_permissions_of_the_source(folder, tmp_path):
    folder.chmod(0o750)
    rewrite(folder, tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == folder.stat().st_mode


def as_ordinary_user(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, for which modes count even where the tests run as root."""
    without = "--bounding-set=-dac_override,-dac_read_search,-fowner"
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, without] if setpriv and Path("/proc/self").stat().st_uid == 0 else []
    code = [sys.executable, "-m", "lean_attention", "rewrite", *map(str, arguments)]
    return subprocess.run([*prefix, *code], capture_output=True, text=True)


@pytest.fixture
def read_only_folder(folder):
    """The model folder as a snapshot has it, its model in a sub-folder."""
    (folder / "onnx").mkdir()
    for name in ("model.onnx", "weights.bin"):
        (folder / name).rename(folder / "onnx" / name)
    change_config(folder, filename="onnx/model.onnx")
    inside = [path for path in folder.rglob("*") if path.is_dir()]
    for path in (*inside, folder):
        path.chmod(0o555)
    yield folder
    for path in (folder, *inside):
        path.chmod(0o755)


def test_read_only_folder_becomes_one_that_its_owner_can_write(read_only_folder, tmp_path):
    run = as_ordinary_user(read_only_folder, tmp_path / "new")
    assert run.returncode == 0, run.stderr
    for path in (".", "onnx", "extra"):
        assert stat.S_IMODE((tmp_path / "new" / path).stat().st_mode) == 0o755
        assert stat.S_IMODE((read_only_folder / path).stat().st_mode) == 0o555
    assert not list(tmp_path.glob(".new.*"))


def test_failed_copy_of_a_read_only_folder_is_one_line_and_leaves_nothing(
    read_only_folder, tmp_path
):
    for name in ("gone", "lost"):
        read_only_folder.chmod(0o755)
        (read_only_folder / name).symlink_to("nowhere")
        read_only_folder.chmod(0o555)
    run = as_ordinary_user(read_only_folder, tmp_path / "new")
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "No such file" in run.stderr
    assert "(and 1 more)" in run.stderr
    assert "[(" not in run.stderr
    assert not list(tmp_path.glob("*new*"))


def test_cleaning_up_makes_folders_writable_first(tmp_path, monkeypatch):
    modes = []
    remove = shutil.rmtree

    def watch(folder: Path, **options: bool) -> None:
        modes.extend(path.stat().st_mode & 0o777 for path in (folder, folder / "sub"))
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", watch)
    with pytest.raises(KeyboardInterrupt), staging_folder(tmp_path / "new") as (staging, _):
        (staging / "sub").mkdir(mode=0o555)
        staging.chmod(0o555)
        raise KeyboardInterrupt
    assert modes == [0o755, 0o755]


def test_folder_that_another_rewrite_finished_first_stays(folder, tmp_path, monkeypatch):
    write = ModelFile.write

    def write_late(self: ModelFile, path: Path) -> None:
        write(self, path)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "theirs").touch()

    monkeypatch.setattr(ModelFile, "write", write_late)
    with pytest.raises(LeanAttentionError, match="new exists already"):
        rewrite(folder, tmp_path / "new")
    assert sorted(listing(tmp_path / "new")) == ["theirs"]
    assert not list(tmp_path.glob(".new.*"))


def test_library_of_an_earlier_folder_is_replaced_not_written_through(
    folder, library, tmp_path, monkeypatch
):
    monkeypatch.setattr(model_folder, "LINK_FROM_BYTES", 1)
    old = folder / "liblean_attention.so"
    old.write_bytes(b"an older build")
    rewrite(folder, tmp_path / "new")
    assert (tmp_path / "new" / old.name).read_bytes() == library.read_bytes()
    assert old.read_bytes() == b"an older build"


def change_config(folder: Path, **decoder: object) -> None:
    path = folder / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"]["decoder"].update(decoder)
    write_json(path, config)


@pytest.mark.parametrize("empty", [{}, None])
def test_folder_without_session_options_gets_them(empty, folder, tmp_path):
    change_config(folder, session_options=empty)
    rewrite(folder, tmp_path / "new")
    config = json.loads((tmp_path / "new" / "genai_config.json").read_text(encoding="utf-8"))
    options = config["model"]["decoder"]["session_options"]
    assert options == {"custom_ops_library": "liblean_attention.so"}


def test_folder_errors(folder, tmp_path, refused):
    new = tmp_path / "new"
    refused(folder, tmp_path / "new.onnx", "is a folder, so the destination must be one too")
    refused(folder, folder / "new", "lies inside the source folder")
    refused(folder, folder, "is the source itself")
    change_config(folder, session_options={"custom_ops_library": "other.so"})
    refused(folder, new, r"'other\.so' already")
    change_config(folder, filename="../model.onnx")
    refused(folder, new, "leads out of its folder")
    change_config(folder, filename="gone.onnx")
    refused(folder, new, r"gone\.onnx.* is not there")
    change_config(folder, filename=None)
    refused(folder, new, r"names no model\.decoder\.filename")
    (folder / "genai_config.json").write_text("{")
    refused(folder, new, "is not valid JSON")
    (folder / "genai_config.json").unlink()
    refused(folder, new, r"has no genai_config\.json")


@pytest.mark.parametrize("options", [[], "text", 3, True])
def test_session_options_that_are_no_object(options, folder, tmp_path, refused):
    change_config(folder, session_options=options)
    refused(folder, tmp_path / "new", "session_options .* not a JSON object")


@pytest.mark.parametrize("depth", [990, 100_000])
def test_configuration_nested_too_deeply(depth, folder, tmp_path, refused):
    path = folder / "genai_config.json"
    deep = "[" * depth + "]" * depth
    path.write_text(path.read_text().replace('"top_k": 50', f'"top_k": {deep}'))
    refused(folder, tmp_path / "new", r"genai_config\.json is nested too deeply")


def test_half_of_a_surrogate_pair_in_the_configuration_is_kept(folder, tmp_path):
    path = folder / "genai_config.json"
    path.write_text(path.read_text().replace('"top_k": 50', r'"top_k": "\ud800é"'))
    rewrite(folder, tmp_path / "new")
    new = json.loads((tmp_path / "new" / "genai_config.json").read_text())
    assert new["search"]["top_k"] == "\ud800é"


def test_folder_already_rewritten(folder, tmp_path):
    rewrite(folder, tmp_path / "new")
    before = listing(tmp_path)
    result = rewrite(tmp_path / "new", tmp_path / "again")
    assert "is already rewritten: 2 of its nodes" in result.unchanged
    assert listing(tmp_path) == before


def test_folder_without_a_library_to_copy(folder, library, tmp_path, refused):
    library.unlink()
    refused(folder, tmp_path / "new", "has no operator library at")
