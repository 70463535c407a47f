import json, statistics, time, os
import pytest
from .test_gallery import gallery, SHOWING
from .widgets import explorers

def test_shots(gallery):
    os.makedirs("/tmp/shots", exist_ok=True)
    for n, one in enumerate(explorers(gallery)):
        root = one.root if hasattr(one, "root") else None
        loc = gallery.page.locator(".jp-OutputArea-output .course-explorer").nth(n)
        loc.scroll_into_view_if_needed()
        svg = loc.locator("svg").first
        z = svg.evaluate("s => [s.getBoundingClientRect().width, s.viewBox.baseVal.width, s.getBoundingClientRect().height, s.viewBox.baseVal.height]")
        print(n, SHOWING[n].stem, [round(x) for x in z], round(z[0]/z[1],2))
        loc.screenshot(path=f"/tmp/shots/{n:02}.png")
