"""An explorer taken apart: its controls, the picture that it shows, its words."""

from typing import Any, NamedTuple

from course_lm.classroom.widgets.explorer import Explorer


class Picture(NamedTuple):
    """The bytes of an explorer's picture as they are now, without its alternative text, which follows the words."""

    box: Explorer

    @property
    def value(self) -> str:
        return self.box.picture.value.partition("base64,")[2]


def parts(box: Explorer) -> list[Any]:
    """The controls in their order, the picture, the words."""
    return [*box.controls.values(), Picture(box), box.words]
