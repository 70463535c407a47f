"""What is installed: the lock, the wheel, the conda environment, the commands, and the order of imports."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import course_lm
from course_lm.cli.commands import COMMANDS
from tests.cli.small_runs import SMALL, write_text

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()
CONDA_SPEC = re.compile(r"[a-z0-9_.-]+\s*([=<>!~]{1,2}\s*[\w.*]+(,[=<>!~]{1,2}[\w.*]+)*)?")
# All but those of other people's trainers, which no command here installs.
EXTRAS = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name not in ("audit", "peers")}


def run(*command, cwd=ROOT, **environment):
    # what a `make` that runs these tests says to its children would change what they print
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
    } | environment
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=variables, capture_output=True, text=True, timeout=300
    )


def locked():
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in LOCK)}


def declared():
    groups = [PROJECT["dependencies"], *EXTRAS.values()]
    return [Requirement(text) for group in groups for text in group]


def needed():
    """Every distribution that the package and its extras need on this machine, however indirectly."""
    found, waiting = set(), [(canonicalize_name("course-lm"), frozenset(EXTRAS))]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in found} - {"course-lm"}


def test_torch_is_a_range_that_holds_the_locked_version_and_ends_with_its_minor_release():
    (torch,) = [requirement for requirement in declared() if requirement.name == "torch"]
    version = locked()[canonicalize_name("torch")]
    major, minor = version.split(".")[:2]
    assert torch.specifier.contains(version)
    assert re.fullmatch(rf"<{major}\.{int(minor) + 1},>=\d+\.\d+", str(torch.specifier))


def test_a_learner_installs_no_trackers():
    lab, track = ({Requirement(text).name for text in EXTRAS[extra]} for extra in ("lab", "track"))
    assert lab.isdisjoint({*track, "course-lm"})


def test_the_lock_holds_plain_exact_versions():
    wrong = [line for line in LOCK if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.!]+", line)]
    assert wrong == []
    assert len(locked()) == len(LOCK)


def test_the_lock_covers_everything_that_gets_installed():
    # setuptools and wheel come with the environment, pip's own tools are not ours to pin
    assert needed() - set(locked()) - {"pip", "setuptools", "wheel"} == set()


def test_the_lock_satisfies_what_the_project_asks_for():
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        assert name == "course-lm" or requirement.specifier.contains(locked()[name], prereleases=True), requirement


def test_the_conda_environment_is_valid_and_leaves_the_versions_to_the_project():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    specs = [spec for spec in environment["dependencies"] if isinstance(spec, str)]
    (pip,) = [spec["pip"] for spec in environment["dependencies"] if isinstance(spec, dict)]
    assert environment["name"] == "course-lm" and environment["channels"]
    assert all(CONDA_SPEC.fullmatch(spec) for spec in specs)
    assert [re.split("[=<>]", spec)[0] for spec in specs] == ["python", "pip"]
    (python,) = (spec.partition("=")[2] for spec in specs if spec.startswith("python="))
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python)
    assert pip == ["-c requirements.lock", "-e .[lab]", "nbval"] and "lab" in EXTRAS


def test_the_workflow_runs_what_ci_runs_under_the_python_of_the_classifiers_and_tries_newer_ones():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    run = {step.get("run"): step.get("if", "always") for step in jobs["everything"]["steps"]}
    assert "!= 'schedule'" in run["bash .ci/run"] and "== 'schedule'" in run["bash .ci/nightly"]
    assert (ROOT / ".ci" / "run").is_file() and (ROOT / ".ci" / "nightly").is_file()
    (main_python,) = re.findall(r"^python:([\d.]+)", jobs["everything"]["container"])
    pythons = {main_python} | {row["python"] for row in jobs["versions"]["strategy"]["matrix"]["include"]}
    classified = {text.split()[-1] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)}
    assert classified == {main_python} < pythons
    assert all(Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python) for python in pythons)


def test_the_dev_container_installs_what_make_lab_installs():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    (python,) = re.findall(r"^python:([\d.]+)", container["image"])
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python)
    assert container["postCreateCommand"] == "make .venv/.lab"


def test_importing_the_package_loads_none_of_its_modules():
    code = "import sys, course_lm; print([name for name in sys.modules if name.startswith('course_lm.')])"
    assert run(sys.executable, "-c", code).stdout.strip() == "[]"


def test_a_name_that_is_no_module_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'no_such_module'"):
        _ = course_lm.no_such_module


def test_the_package_lists_every_module_and_package_of_its_own():
    files = (ROOT / "course_lm").iterdir()
    modules = {path.stem for path in files if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__", "__main__"} <= set(dir(course_lm))
    assert course_lm.__version__ == importlib.metadata.version("course-lm") and "__version__" in dir(course_lm)


def test_importing_the_package_costs_little_beside_torch():
    code = "import time, torch; start = time.perf_counter(); import course_lm; print(time.perf_counter() - start)"
    seconds = min(float(run(sys.executable, "-c", code).stdout) for _ in range(3))
    assert seconds < 0.3


def lint_imports(folder):
    tool = Path(sys.executable).parent / "lint-imports"
    return run(tool, "--config", ROOT / "pyproject.toml", "--no-cache", cwd=folder, PYTHONPATH=str(folder))


BREACHES = [
    ("clipping", "import course_lm.trainer", "a module imports only modules below it"),
    ("batching/packing", "import course_lm.batching.loader", "no modules import each other in a circle"),
    ("schedules", "import course_lm.clipping", "the parts of one step do not import each other"),
    ("trainer/loop", "import course_lm.audit.spec", "the specification is read by checks and audit alone"),
    ("audit/spec", "import course_lm.loss", "the specification shares nothing with the package"),
    ("audit/spec", "import course_lm.audit.features", "the specification shares nothing with the package"),
]


def test_every_contract_on_imports_is_seen_to_fail():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == {name for _, _, name in BREACHES}


def test_the_order_of_imports_holds():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("module", "statement", "contract"), BREACHES)
def test_an_import_against_the_order_is_refused(tmp_path, module, statement, contract):
    shutil.copytree(ROOT / "course_lm", tmp_path / "course_lm", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "course_lm" / f"{module}.py").open("a") as file:
        file.write(f"\n{statement}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert f"{contract} BROKEN" in result.stdout


def commit_hooks():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    return {hook["id"]: hook["entry"].split() for hook in repository["hooks"]}


@pytest.mark.parametrize("hook", commit_hooks())
def test_a_hook_at_every_commit_names_a_command_that_there_is(hook):
    tool, *arguments = commit_hooks()[hook]
    assert Path(tool).parent == Path(".venv/bin")
    result = run(Path(sys.executable).parent / Path(tool).name, *arguments, "--help")
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    result = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel):
    """The wheel, installed alone in a folder far from the checkout."""
    folder = wheel.parent / "site"
    result = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_the_wheel_holds_corpora_lessons_configurations_and_types_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    folders = {"data": "_data", "docs": "_docs", "notebooks": "_notebooks", "course_lm/configs": "configs"}
    for folder, target in folders.items():
        kinds = "*.ipynb" if folder == "notebooks" else "**/*"  # beside the lessons lie settings and caches of tools
        shipped = {path.relative_to(ROOT / folder) for path in (ROOT / folder).glob(kinds) if path.is_file()}
        assert shipped and {f"course_lm/{target}/{path.as_posix()}" for path in shipped} - set(names) == set()
    assert "course_lm/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"course_lm"}


def test_the_installed_wheel_loads_its_corpus_and_its_configurations(site):
    code = "import course_lm, sys; from course_lm.corpus import load_corpus; from course_lm.config import find_config;"
    code += "print(course_lm.__file__, len(load_corpus('stories').documents), find_config('python-docs'))"
    result = run(sys.executable, "-c", code, cwd=site.parent, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    where, stories, config = result.stdout.split()
    assert Path(where).is_relative_to(site) and Path(config).is_relative_to(site)
    assert int(stories) > 1000


def test_the_installed_command_opens_copies_of_its_own_lessons(site, tmp_path):
    fake = tmp_path / "fake" / "jupyterlab.py"
    fake.parent.mkdir()
    fake.write_text("import sys\nprint(*sys.argv[1:])\n")
    path = os.pathsep.join([str(fake.parent), str(site)])
    copies = tmp_path / "course_lm_lessons"
    for here in (tmp_path, copies / "notebooks"):  # opened again from inside, it is the same workspace
        result = run(site / "bin" / "course-lm", "lab", cwd=here, PYTHONPATH=path)
        assert result.returncode == 0, result.stderr
        assert f"--ServerApp.root_dir={copies} --LabApp.default_url=/lab/tree/notebooks/00_" in result.stdout
    lessons = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert lessons and all((copies / "notebooks" / path.name).read_bytes() == path.read_bytes() for path in lessons)
    assert (copies / "docs" / "contract.md").is_file() and (copies / "course_lm" / "loss.py").is_file()
    told = run(site / "bin" / "course-lm", "progress", cwd=tmp_path, PYTHONPATH=path)
    assert told.returncode == 0 and len(told.stdout.splitlines()) == len(lessons) + 2


LOOP = """
from course_lm.audit import spec

def sound(model, epochs, settings):
    made = spec.train(model, epochs, settings, ())
    model.load_state_dict(made.weights)

loop = sound

def entry(new_model, batches, budget):
    model = new_model()
    loop(model, [[next(batches(2))]], spec.Settings())
    return model
"""
TRAIN = ["text.txt", *SMALL, "--training.max_steps=2"]
# What each command is given, by its name, and what stands in its output then.
USES = {
    "lessons": (["02"], "02_batching "),
    "train": ([*TRAIN, "--experiment_name=third"], "the run is kept in runs/third"),
    "find-lr": (["text.txt", *SMALL, "--num_iter=5"], "the curve is drawn in lr_finder.png"),
    "plan": (["--ranks=4", "--config=gpt2"], "124,475,904 parameters"),
    "profile": (["text.txt", *SMALL, "--repeats=1"], "profile holds profile.png, profile.json, and trace.json"),
    "inspect": (["text.txt", *SMALL], "exact duplicates"),
    "preflight": (["text.txt", *SMALL, "--optimizer.type=adamw", "--training.max_steps=9"], "ok    causality"),
    "speedrun": (["loops.py:entry"], "nats per token above the floor"),
    "audit": (["loops.py:sound", "--parts", "loss"], "sound: equal to the specification"),
    "runs": ([], "second"),
    "plot": (["first", "second"], "the curves are drawn in plot.png"),
    "generate": (["first", "--prompt=the cat", "--max_new_tokens=3"], "the cat"),
    "evaluate": (["first"], "bits per byte"),
    "export": (["first", "--to=exported"], "exported: GPTNeoXForCausalLM"),
    "completion": (["bash"], "--optimizer.learning_rate"),
}


@pytest.fixture(scope="module")
def far_away(site, tmp_path_factory):
    """A folder with a text, a loop, and two runs that the installed command has trained."""
    folder = tmp_path_factory.mktemp("far away")
    write_text(folder / "text.txt")
    (folder / "loops.py").write_text(LOOP)
    for name, seed in (("first", 1), ("second", 2)):
        installed(site, folder, "train", *TRAIN, f"--experiment_name={name}", f"--training.seed={seed}")
    return folder


def installed(site, folder, *arguments):
    """What the installed command prints in a folder, where it ends well."""
    result = run(site / "bin" / "course-lm", *arguments, cwd=folder, PYTHONPATH=str(site), OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("command", USES)
def test_each_installed_command_does_its_work_far_from_the_checkout(site, far_away, command):
    arguments, expected = USES[command]
    assert expected in installed(site, far_away, command, *arguments)


def test_no_command_is_left_out_of_those_that_run_from_the_wheel():
    opened_above = {"lab", "progress", "release"}
    assert USES.keys() | opened_above == COMMANDS.keys()


FAKE_PYTHON = """#!/bin/sh
echo "$@" >> {log}
if [ "$2" = venv ]; then mkdir -p .venv/bin && cp "$0" .venv/bin/python; fi
"""


@pytest.fixture
def workshop(tmp_path):
    """A folder with the Makefile and a `python` that only writes down how it is called."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(log=tmp_path / "log"))
    python.chmod(0o755)
    return tmp_path


def installs(workshop, target):
    before = _calls(workshop)
    result = run("make", target, f"PYTHON={workshop / 'python'}", cwd=workshop)
    assert result.returncode == 0, result.stderr
    return [call for call in _calls(workshop)[len(before) :] if "pip install" in call]


def _calls(workshop):
    return (workshop / "log").read_text().splitlines() if (workshop / "log").exists() else []


def test_make_installs_once_under_the_lock(workshop):
    (first,) = installs(workshop, ".venv/.lab")
    assert "-c requirements.lock" in first and "-e .[lab]" in first
    assert installs(workshop, ".venv/.lab") == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements.lock"])
def test_make_installs_again_when_the_project_or_the_lock_changes(workshop, changed):
    installs(workshop, ".venv/.lab")
    later = (workshop / ".venv" / ".lab").stat().st_mtime + 1
    os.utime(workshop / changed, (later, later))
    assert len(installs(workshop, ".venv/.lab")) == 1


def test_the_test_environment_serves_the_lab_too(workshop):
    (install,) = installs(workshop, ".venv/.test")
    assert "-e .[test]" in install
    assert installs(workshop, ".venv/.lab") == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("exit 1", "course_lm needs Python 3.11 or newer"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "sudo apt-get install python3-venv"),
    ],
    ids=["an old Python", "no venv module"],
)
def test_make_says_in_one_line_what_the_machine_lacks(workshop, answer, message):
    (workshop / "python").write_text(f"#!/bin/sh\n{answer}\n")
    result = run("make", "lab", f"PYTHON={workshop / 'python'}", cwd=workshop)
    assert result.returncode != 0
    first, *rest = result.stderr.splitlines()
    assert message in first
    assert all(line.startswith("make") for line in rest)
