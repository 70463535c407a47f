"""Claims about `course-lm generate`: the text it prints, where its prompt comes from, and how it ends."""

import io
import os
import sys

import pytest
import torch

from course_lm.cli import generate as command
from course_lm.cli import main
from course_lm.generate import generate
from course_lm.tokenizer import decode, encode_documents, eos_id
from course_lm.use.finished_run import open_run
from tests import fork_server
from tests.cli.answers import assert_refused


def printed_by(capsys, *arguments):
    assert main(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr()


def standard_input(monkeypatch, content, piped):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    monkeypatch.setattr(command, "_is_piped", lambda: piped)


@pytest.fixture(autouse=True)
def a_terminal(monkeypatch):
    standard_input(monkeypatch, b"", piped=False)


def test_the_text_is_the_prompt_and_what_the_model_of_the_run_puts_after_it(finished, capsys):
    run = open_run(str(finished))
    (ids,) = encode_documents(run.tokenizer, ["the cat"])
    drawn = generate(
        run.model,
        ids[:-1],
        max_new_tokens=30,
        temperature=0.7,
        top_k=50,
        top_p=0.9,
        eos_id=eos_id(run.tokenizer),
        generator=torch.Generator().manual_seed(3),
    )
    settings = ["--max_new_tokens=30", "--temperature=0.7", "--top_k=50", "--top_p=0.9", "--seed=3"]
    out = printed_by(capsys, finished, "--prompt", "the cat", *settings).out
    assert out == "the cat" + decode(run.tokenizer, drawn) + "\n"


def test_without_a_prompt_a_document_begins_and_a_number_gives_as_many(finished, capsys):
    one = printed_by(capsys, finished, "--max_new_tokens=5").out
    two = printed_by(capsys, finished, "--max_new_tokens=5", "--number=2").out
    assert two.startswith(one + "\n") and len(two) > len(one) + 1


def test_parts_are_printed_as_they_come(finished, capsys, monkeypatch):
    seen = []

    def slowly(tokenizer, ids):
        for part in ("one", " two"):
            yield part
            seen.append(capsys.readouterr().out)

    monkeypatch.setattr(command, "decode_stream", slowly)
    assert main(["generate", str(finished)]) == 0
    assert seen == ["one", " two"]


def test_a_prompt_longer_than_the_model_sees_is_warned_of_in_one_line(finished, capsys):
    with pytest.warns(UserWarning, match=r"^the prompt has \d+ tokens, .* sees the last 16 only$"):
        printed_by(capsys, finished, "--prompt", "zzzz " * 20, "--max_new_tokens=1")


@pytest.mark.parametrize(("arguments", "piped"), [(["--prompt", "-"], False), ([], True)])
@pytest.mark.parametrize("content", [b"the d\xc3\xa9", b"the d\xc3\xa9\n", b"the d\xc3\xa9\r\n"])
def test_standard_input_gives_the_prompt_without_its_last_line_end(
    finished, capsys, monkeypatch, arguments, piped, content
):
    standard_input(monkeypatch, content, piped)
    out = printed_by(capsys, finished, *arguments, "--max_new_tokens=4").out
    standard_input(monkeypatch, b"", piped=False)
    assert out == printed_by(capsys, finished, "--prompt", "the dé", "--max_new_tokens=4").out


def test_an_empty_pipe_begins_a_document(finished, capsys, monkeypatch):
    expected = printed_by(capsys, finished, "--max_new_tokens=4").out
    standard_input(monkeypatch, b"", piped=True)
    assert printed_by(capsys, finished, "--max_new_tokens=4").out == expected


def test_a_prompt_is_text_even_where_it_spells_a_special_token(finished, capsys):
    assert printed_by(capsys, finished, "--prompt", "a <eos> b", "--max_new_tokens=1").out.startswith("a <eos> b")


@pytest.mark.parametrize(("kind", "piped"), [("pipe", True), ("file", True), ("null", False)])
def test_a_pipe_and_a_file_are_standard_input_that_is_read_and_no_input_is_not(tmp_path, monkeypatch, kind, piped):
    monkeypatch.undo()
    (tmp_path / "file").write_text("text")
    read, write = os.pipe()
    os.close(write)
    descriptors = {"pipe": read, "null": os.open(os.devnull, os.O_RDONLY), "file": os.open(tmp_path / "file", 0)}
    with os.fdopen(descriptors.pop(kind)) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert command._is_piped() == piped
    for other in descriptors.values():
        os.close(other)


def test_a_prompt_from_a_standard_input_that_is_closed_is_refused(finished, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert_refused(capsys, ["generate", str(finished), "--prompt=-"], "standard input, which is closed")


def test_ctrl_c_ends_the_line_and_says_so_in_another(finished, capsys, monkeypatch):
    def press(*_):
        yield "one"
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "decode_stream", press)
    assert main(["generate", str(finished)]) == 130
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("one\n", "course-lm: interrupted\n")


def test_a_reader_that_has_had_enough_ends_the_command_without_a_word(finished, tmp_path):
    words = [sys.executable, "-m", "course_lm", "generate", str(finished), "--number=200", "--max_new_tokens=50"]
    reading, writing = os.pipe()
    with open(tmp_path / "err", "wb") as err:
        files = [writing, err.fileno()]
        process = fork_server.Process(fork_server.python, words, tmp_path, fork_server.environment(), files=files)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    assert (process.wait(60), (tmp_path / "err").read_text()) == (0, "")


def test_what_the_terminal_cannot_show_comes_as_escapes(finished, capsys, monkeypatch):
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, "ascii"))
    assert main(["generate", str(finished), "--prompt", "dé", "--max_new_tokens=1", "--temperature=0"]) == 0
    assert content.getvalue().startswith(b"d\\xe9")


@pytest.mark.filterwarnings("ignore:the prompt has")
@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_what_it_would_obey_and_a_pipe_gets_the_text(finished, capsys, monkeypatch, terminal):
    prompt = "a\x1b[2J\x07\r\x9b1m\u202e\x7fb\tहिन्दी\u200d\n"
    content = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    monkeypatch.setattr(content, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", content)
    assert main(["generate", str(finished), "--prompt", prompt, "--max_new_tokens=1", "--temperature=0"]) == 0
    content.seek(0)
    shown = "a\\x1b[2J\\x07\\r\\x9b1m\\u202e\\x7fb\tहिन्दी\u200d\n"
    assert content.read().startswith(shown if terminal else prompt)


def test_a_message_never_commands_a_terminal(capsys):
    assert main(["generate", "a\x1b[2J\u202e\x9b"]) == 2
    assert "a\\x1b[2J\\u202e\\x9b is not there" in capsys.readouterr().err


def test_bytes_from_standard_input_that_are_no_text_are_refused(finished, capsys, monkeypatch):
    standard_input(monkeypatch, b"caf\xe9", piped=True)
    assert_refused(capsys, ["generate", str(finished)], "standard input must be UTF-8", "0xe9 at offset 3")
