"""Claims about `course-lm completion`: a shell completes commands, their options, and keys of the configuration."""

import shutil
import subprocess

import pytest

from tests.cli.answers import printed

BASH = shutil.which("bash")


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last word of a command line."""
    line = " ".join(f"'{word}'" for word in words)
    current, previous = words[-1], words[-2] if len(words) > 1 else ""
    ask = (
        f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
        "ask=$(complete -p course-lm); ask=${ask#*-F }; ${ask%% *}"
        f" course-lm '{current}' '{previous}'\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([str(BASH), "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines()]


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("gen",), {"generate"}),
        (("lab", "--"), {"--fresh", "--workspace"}),
        (("train", "--optimizer.l"), {"--optimizer.learning_rate"}),
        (("evaluate", "--split", ""), {"train", "validation", "test"}),
        (("find-lr", "--held"), {"--held_out"}),
        (("generate", "--to"), {"--top_k", "--top_p"}),
    ],
    ids=lambda value: " ".join(value),
)
def test_bash_completes(capsys, words, offered):
    assert offered <= set(completed(printed(capsys, ["completion", "bash"]), "course-lm", *words))


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize("command", ["train", "inspect"])
def test_bash_completes_the_path_of_a_text(capsys, tmp_path, monkeypatch, command):
    (tmp_path / "my.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert "my.txt" in completed(printed(capsys, ["completion", "bash"]), "course-lm", command, "my")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_there_is_a_script_for_each_shell(capsys, shell):
    assert "optimizer.learning_rate" in printed(capsys, ["completion", shell])
