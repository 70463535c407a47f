"""The book: the lessons as they are stored, the pages of the project, and the reference from the docstrings.

`make book` builds it. Sphinx reads a single folder, and that is none of the repository's: `gather` fills it with copies
at the same places, so that a link between two files holds in the book as it does in the repository.
"""

import builtins
import pkgutil
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the package beside this file, whatever else is installed

import course_lm  # noqa: E402

project = "course_lm"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
PICTURE = re.compile(r"<picture>.*?<img [^>]*?alt=\"([^\"]*)\" src=\"([^\"]*)\">\s*</picture>", re.DOTALL)
exclude_patterns = ["README.md"]  # index.md includes it

nb_execution_mode = "off"
nb_ipywidgets_js = {}  # what draws widgets would be fetched from the network
myst_heading_anchors = 3
smartquotes_action = "De"  # dashes and ellipses; "raise" is to be typed as it stands

default_role = "literal"  # `code` in a docstring, as in Markdown
# A name is described where it is defined, and not again where a package hands it on.
autodoc_default_options = {"members": True, "ignore-module-all": True, "no-value": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # a default that is a function, by its name
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else an attribute that its class describes is there twice
python_maximum_signature_line_length = 160  # of types in full, of which the last part alone is shown

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["book.css"]
html_css_files = ["book.css"]
html_theme_options = {"navbar_persistent": [], "footer_content_items": []}
html_show_search_summary = False  # a browser refuses to look for it in pages that lie on a disk


def gather(app: Sphinx, config: Config) -> None:
    """Fill the folder that Sphinx reads: a copy of each page, and what asks for the reference."""
    pages = ["*.md", "data/README.md", "docs/*.md", "docs/*.png", "notebooks/[0-9][0-9]_*.ipynb"]
    for page in (path for pattern in pages for path in ROOT.glob(pattern)):
        copy = app.srcdir / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, copy)
    readme = app.srcdir / "README.md"  # whose pictures for two themes Sphinx would not look for
    text = PICTURE.sub(lambda found: f"![{' '.join(found[1].split())}]({found[2]})", readme.read_text(encoding="utf-8"))
    readme.write_text(text, encoding="utf-8")
    (app.srcdir / "docs" / "index.md").rename(app.srcdir / "index.md")
    (app.srcdir / "api").mkdir()
    for page, modules in reference().items():
        sections = [f"{name}\n{'-' * len(name)}\n\n.. automodule:: {name}\n" for name in modules]
        title = f"{page}\n{'=' * len(page)}\n\n.. automodule:: {page}\n"
        (app.srcdir / "api" / f"{page}.rst").write_text("\n".join([title, *sections]), encoding="utf-8")


def reference() -> dict[str, list[str]]:
    """A page for each package, with the modules on it, and for each module that is in no package but the whole."""
    pages: dict[str, list[str]] = {course_lm.__name__: []}
    for _, name, is_package in pkgutil.walk_packages(course_lm.__path__, "course_lm."):
        package, _, own_name = name.rpartition(".")
        if own_name.startswith("_"):
            continue
        if is_package or package == course_lm.__name__:
            pages[name] = []
        else:
            pages[package].append(name)
    return pages


def lead_links_to_the_reference(app: Sphinx, page: nodes.document) -> None:
    """Turn a link to a file of the package into one to its description; the tests, not in the book, get no link."""
    for link in list(page.findall(pending_xref)):
        place = re.fullmatch(r"(?:\.\./)*(course_lm|tests)/([\w/]*\w)(?:\.py)?", link.get("reftarget", ""))
        if link["reftype"] != "myst" or place is None:
            continue
        if place[1] == "tests":
            link.replace_self(link.children)
            continue
        target = f"course_lm.{place[2].replace('/', '.')}".removesuffix(".__init__")
        name = link.astext()
        # Of a constant, and of what is private, there is no description but that of its module.
        if any(link.findall(nodes.literal)) and not name.isupper() and not re.search(r"\b_", name):
            target += f".{name}"
        found = pending_xref("", *link.children, refdomain="py", reftype="obj", reftarget=target, refwarn=True)
        found["refdoc"] = link["refdoc"]
        link.replace_self(found)


def leave_builtins_alone(app: Sphinx, page: nodes.document) -> None:
    """Keep Sphinx from taking the type `bytes` for the attribute of that name which some class has."""
    for link in list(page.findall(pending_xref)):
        if link["refdomain"] == "py" and hasattr(builtins, link["reftarget"]):
            link.replace_self(link.children)


def read_as_markdown(app: Sphinx, what: str, name: str, described: object, options: object, lines: list[str]) -> None:
    """Code in a docstring is code for Sphinx too if a letter follows it, as in `batch`es, and if it is a block."""
    text = re.sub(r"(`+[^`]+`+)(\w?)", lambda code: "\\ ".join(filter(None, code.groups())), "\n".join(lines))
    if what == "module":  # in other docstrings Args and the like are indented too
        text = re.sub(r"\n\n(?=    \S)", "\n\n::\n\n", text)
    lines[:] = text.split("\n")


def leave_out_positions(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Leave out "Alias for field number 0", all that Python says of a named tuple's field; None: as Sphinx decides."""
    return (member.__doc__ or "").startswith("Alias for field number") or None


def setup(app: Sphinx) -> None:
    """Called by Sphinx, before it looks for pages."""
    app.connect("config-inited", gather)
    app.connect("autodoc-skip-member", leave_out_positions)
    app.connect("autodoc-process-docstring", read_as_markdown)
    app.connect("doctree-read", lead_links_to_the_reference)
    app.connect("doctree-read", leave_builtins_alone)
