"""What others call changes only on purpose, and is documented."""

import inspect

import kedge
from tests.api import FILE, described, listing


def test_the_public_names_and_signatures_are_those_of_the_list():
    committed = FILE.read_text(encoding="utf-8").splitlines()
    now = listing().splitlines()
    gone, new = (sorted(set(a) - set(b)) for a, b in ((committed, now), (now, committed)))
    told = "say so in CHANGELOG.md and run `python -m tests.api`"
    assert (gone, new) == ([], []), f"the public API has changed: {told}"
    assert committed == now


def test_a_changed_default_a_new_argument_and_a_lost_method_show():
    class Before:
        """A class."""

        def run(self, rounds=1):
            """Run."""

    class After:
        """A class."""

        def run(self, rounds=2, *, fast):
            """Run."""

    Before.__module__ = After.__module__ = "kedge.here"
    assert list(described("kedge.A", Before))[1:] == ["kedge.A.run(self, rounds=1)"]
    assert list(described("kedge.A", After))[1:] == ["kedge.A.run(self, rounds=2, *, fast)"]


def test_every_public_name_has_a_docstring_of_its_own():
    names = {name: getattr(kedge, name) for name in kedge.__all__}
    ours = {name: it for name, it in names.items() if getattr(it, "__module__", "").startswith("kedge")}
    assert [name for name, thing in ours.items() if inspect.isclass(thing) and "__doc__" not in vars(thing)] == []
    assert [name for name, thing in ours.items() if not inspect.getdoc(thing)] == []
