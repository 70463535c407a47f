"""An explorer taken apart: its controls, the picture that it shows, its words."""

import json
from typing import Any

from course_lm.classroom.widgets.explorer import Explorer


class Part:
    """One value of an explorer as it is now: of a control, which can be moved, or its picture or words."""

    def __init__(self, box: Explorer, name: str) -> None:
        self.box, self.name = box, name

    @property
    def value(self) -> Any:
        return json.dumps(self.box.view()[self.name]) if self.name in ("scene", "words") else self.box.values[self.name]

    @value.setter
    def value(self, value: Any) -> None:
        control = self.box.controls[self.name]
        places = [other.options.index(self.box.values[name]) for name, other in self.box.controls.items()]
        places[[*self.box.controls].index(self.name)] = control.options.index(value)
        self.box.answer({"turn": 1, "places": places})


def parts(box: Explorer) -> list[Part]:
    """The controls in their order, the picture, the words."""
    return [Part(box, name) for name in (*box.controls, "scene", "words")]
