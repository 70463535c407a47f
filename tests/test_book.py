"""The book of `make book`: every link leads somewhere, nothing is missing, no page asks the network for anything."""

import html.parser
import json
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import course_lm
from tests.browser.lab import find_chromium, running_browser

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(html.parser.HTMLParser):
    """The `links` of a page and what it `loads`, its `anchors`, its `figures` by description, its `misplaced` tags."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.links, self.loads, self.anchors, self.figures, self.misplaced = [], [], set(), [], []
        self._open = []
        self.feed(path.read_text(encoding="utf-8"))
        self.misplaced += [tag for tag in self._open if tag == "details"]

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        for name in ("href", "src", "data"):
            if given.get(name):
                (self.loads if (tag, name) in LOADED else self.links).append(given[name])
        if tag == "img":
            self.figures.append(" ".join((given.get("alt") or "").split()))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        """A fold must hold whole elements, or it folds too much or too little."""
        if tag in self._open:
            while (last := self._open.pop()) != tag:
                self.misplaced += [f"{last} in {tag}"] * ("details" in (last, tag))


def pages_of(site):
    """All but what the theme keeps among its scripts, which is no page."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}


def dead_ends(site, pages):
    """Each reference of a page to a file, or a place in a file, that the site does not have."""
    for path, page in pages.items():
        for target in page.links + page.loads:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            there = file.is_file() and file.is_relative_to(site)
            if not there or (anchor and file in pages and anchor not in pages[file].anchors):
                yield f"{path.name}: {target}"


def loads_from_elsewhere(site, pages):
    """What a page or a style sheet would fetch from another machine."""
    for path, page in pages.items():
        yield from (f"{path.name}: {target}" for target in page.loads if re.match(r"(https?:)?//", target))
    for path in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", path.read_text(encoding="utf-8"))
        yield from (f"{path.name}: {target}" for target in found)


def stored_descriptions(lesson):
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [output["data"] for output in outputs if "<img " in "".join(output.get("data", {}).get("text/html", ""))]
    return [" ".join("".join(data["text/plain"]).split()) for data in pictures]


def test_the_checks_find_what_is_wrong_with_a_page(tmp_path):
    site = tmp_path.resolve() / "site"
    site.mkdir()
    (tmp_path / "outside.html").touch()
    (site / "style.css").write_text("@import 'https://fonts.example/a.css'; a { background: url(//b.example/c) }")
    (site / "there.html").write_text('<p id="here"></p>')
    dead = ["gone.html", "there.html#gone", "#gone", "../outside.html"]
    links = "".join(f"<a href='{target}'></a>" for target in ["there.html#here", "https://elsewhere.example", *dead])
    others = "<img src='gone.png'><script src='https://cdn.example/d.js'></script><details><p></details><details>"
    (site / "page.html").write_text(links + others)
    pages = pages_of(site)
    assert list(dead_ends(site, pages)) == [f"page.html: {target}" for target in [*dead, "gone.png"]]
    assert list(loads_from_elsewhere(site, pages)) == [
        "page.html: https://cdn.example/d.js",
        "style.css: https://fonts.example/a.css",
        "style.css: //b.example/c",
    ]
    assert pages[site / "page.html"].misplaced == ["p in details", "details"]
    assert pages[site / "page.html"].figures == [""]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The book as `make book` builds it, with this Python: `--old-file` takes the environment as it is."""
    site = tmp_path_factory.mktemp("book").resolve() / "book"
    command = ["make", "--old-file", ".venv/.test", "book", f"PY={sys.executable}", f"BOOK={site}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    return site, result


@pytest.fixture(scope="module")
def site(built):
    return built[0]


@pytest.fixture(scope="module")
def pages(site):
    return pages_of(site)


def test_the_book_is_built_without_a_warning(built):
    _, result = built
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr


def test_every_link_within_the_book_leads_to_a_place_that_is_there(site, pages):
    assert list(dead_ends(site, pages)) == []


def test_no_page_loads_anything_from_the_network(site, pages):
    assert list(loads_from_elsewhere(site, pages)) == []


def test_every_lesson_is_a_page_and_leads_to_the_next(site, pages):
    names = [lesson.stem for lesson in LESSONS]
    for name, following in pairwise(names):
        assert f"{following}.html" in pages[site / "notebooks" / f"{name}.html"].links
        assert f"{name}.html" in pages[site / "notebooks" / f"{following}.html"].links


def test_every_page_of_the_project_is_there(site, pages):
    docs = {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")}
    expected = {"index", "CHANGELOG", "CONTRIBUTING", "data/README", *docs}
    assert expected - {"docs/index"} - {path.relative_to(site).with_suffix("").as_posix() for path in pages} == set()


def test_every_public_module_is_described(pages):
    described = {anchor for page in pages.values() for anchor in page.anchors if anchor.startswith("module-")}
    names = [module.name for module in pkgutil.walk_packages(course_lm.__path__, "course_lm.")]
    assert {f"module-{name}" for name in names if "._" not in name} - described == set()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_figure_has_the_description_that_its_lesson_stores(site, pages, lesson):
    descriptions = stored_descriptions(lesson)
    assert all(descriptions)
    missing = Counter(descriptions) - Counter(pages[site / "notebooks" / f"{lesson.stem}.html"].figures)
    assert missing == Counter()


def test_no_picture_is_without_a_description(pages):
    assert [path.name for path, page in pages.items() if not all(page.figures)] == []


def test_every_fold_holds_whole_paragraphs(pages):
    assert {path.name: page.misplaced for path, page in pages.items() if page.misplaced} == {}


def test_a_fold_is_there_for_every_fold_of_a_lesson(site, pages):
    for lesson in LESSONS:
        page = (site / "notebooks" / f"{lesson.stem}.html").read_text(encoding="utf-8")
        cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        assert page.count("<details>") >= "\n".join(texts).count("<details>") > 0


@pytest.mark.parametrize("word", ["ignore_index", "next_token_loss"])
def test_the_search_knows_the_words_of_lessons_and_reference(site, word):
    script = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))
    names = set()
    for where in ("terms", "titleterms"):
        found = index[where].get(word, [])  # a number where it is one page alone
        names |= {index["docnames"][number] for number in (found if isinstance(found, list) else [found])}
    assert {"notebooks/03_loss", "api/course_lm.loss"} <= names


def test_a_link_to_a_function_leads_to_its_description(site, pages):
    assert "../api/course_lm.step.html#course_lm.step.train_step" in pages[site / "docs" / "way_of_a_batch.html"].links


WIDER_THAN_ITS_PLACE = """() => [...document.querySelectorAll("article pre, article table")]
    .map(element => element.tagName == "PRE" ? element : element.parentElement)
    .filter(place => place.scrollWidth > place.clientWidth + 1)
    .map(place => place.textContent.trim().slice(0, 80))"""


def test_no_code_and_no_table_is_wider_than_its_column_on_a_screen_of_1280_pixels(site, pages):
    with running_browser(find_chromium()) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        wide = {}
        for path in [*(site / "notebooks").glob("*.html"), *(site / "docs").glob("*.html"), site / "index.html"]:
            page.goto(path.as_uri())
            wide[path.stem] = page.evaluate(WIDER_THAN_ITS_PLACE)
    assert len(wide) > 25 and not any(wide.values()), {name: cut for name, cut in wide.items() if cut}
