"""Claims about `course-lm export`: a folder that transformers open, whole or not at all, in place of nothing else."""

import os

import pytest
import torch

from course_lm.cli import export as command
from course_lm.cli import main
from course_lm.transformers_export import FILES
from course_lm.use.finished_run import open_run
from tests.cli.answers import assert_refused, printed


def export(run, to):
    return ["export", str(run), "--to", str(to)]


def test_transformers_continue_a_text_as_generate_does(finished, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    assert "GPTNeoXForCausalLM" in printed(capsys, export(finished, tmp_path / "new" / "exported"))
    folder = tmp_path / "new" / "exported"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    prompt = tokenizer("the", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=10, do_sample=False)[0]
    main(["generate", str(finished), "--prompt=the", "--max_new_tokens=10", "--temperature=0"])
    assert tokenizer.decode(ids, skip_special_tokens=True) + "\n" == capsys.readouterr().out
    with torch.no_grad():
        here = open_run(str(finished)).model(prompt["input_ids"])
        torch.testing.assert_close(model(**prompt).logits, here, rtol=1e-5, atol=1e-5)


def test_the_folder_holds_what_transformers_read_and_nothing_else(finished, tmp_path):
    assert main(export(finished, tmp_path / "exported")) == 0
    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


def test_an_earlier_export_is_renewed_and_an_empty_folder_is_filled(finished, tmp_path):
    (tmp_path / "exported").mkdir()
    assert main(export(finished, tmp_path / "exported")) == 0
    (tmp_path / "exported" / "tokenizer.json").write_text("{}")
    assert main(export(finished, tmp_path / "exported")) == 0
    assert (tmp_path / "exported" / "tokenizer.json").stat().st_size > 100
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


def test_an_export_through_a_link_goes_where_it_leads(finished, tmp_path):
    (tmp_path / "exported").mkdir()
    (tmp_path / "link").symlink_to("exported")
    for _ in range(2):
        assert main(export(finished, tmp_path / "link")) == 0
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "link"]
    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == sorted(FILES)


@pytest.mark.parametrize("other", ["notes.txt", "config.json", "model.safetensors"])
def test_a_folder_that_holds_something_else_stays_as_it_is(finished, tmp_path, capsys, other):
    (tmp_path / other).write_text("{}")
    assert_refused(capsys, export(finished, tmp_path), str(tmp_path), f"holds something else ({other})", "new, empty")
    assert [path.name for path in tmp_path.iterdir()] == [other] and (tmp_path / other).read_text() == "{}"


def test_an_export_with_a_file_of_yours_beside_it_stays_as_it_is(finished, tmp_path, capsys):
    main(export(finished, tmp_path / "exported"))
    (tmp_path / "exported" / "README.md").write_text("mine")
    assert_refused(capsys, export(finished, tmp_path / "exported"), "holds something else", "README.md")


@pytest.mark.parametrize("there", [True, False], ids=["over an earlier export", "new"])
def test_an_export_that_fails_half_way_leaves_what_was_there(finished, tmp_path, capsys, monkeypatch, there):
    if there:
        main(export(finished, tmp_path / "exported"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()

    def full(model, tokenizer=None):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "tokenizer_config", full)
    assert_refused(capsys, export(finished, tmp_path / "exported"), "No space left on device")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["exported"] * there


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(finished, tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert_refused(capsys, export(finished, tmp_path / "exported"), "exported")
