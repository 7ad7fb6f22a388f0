"""Which sweeps in turn become one: those that look at the same places, row by row.

A row is all values along one axis, such as the channels of one position. Sweeps that give every
element, that fold rows, or that fold all rows into one, take no more of the others than a row has:
what one leaves, the next finds in registers. A softmax's gradient reads its tensors once, not four
times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from transfuse.sweeps import Each, Fold, Slide, Sweep, View

LONGEST = 1024
"""Elements of a row that one program holds."""
LONGEST_BESIDE = 256
"""The same where some view lies across the rows, of which a program then holds more."""

Role = Literal["each", "row", "column"]
"""A value for each element; one for each row; one for each place in a row, over all rows."""


@dataclass(frozen=True)
class Placed:
    """A view by the axes that all sweeps of a group have."""

    view: View
    strides: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return self.view.slot, self.view.dtype, self.view.offset, self.strides


@dataclass(frozen=True)
class Member:
    """A sweep of a group, its views by the axes of the group."""

    sweep: Each | Fold
    role: Role
    outs: tuple[Placed, ...]
    values: tuple[Placed, ...]
    others: tuple[Placed, ...]


@dataclass
class Group:
    """Sweeps over axes of these ``sizes``; rows lie along axis ``along``, if any is folded yet."""

    sizes: tuple[int, ...]
    members: list[Member] = field(default_factory=list)
    along: int | None = None

    @property
    def worthwhile(self) -> bool:
        """Whether the sweeps share what is larger than rows' own results."""
        if self.along is None or len(self.members) < 2:
            return False
        beside = any(
            1 in (s for axis, s in enumerate(each.strides) if axis != self.along)
            and each.strides[self.along] > 1
            for member in self.members
            for each in (*member.outs, *member.values)
        )
        if self.sizes[self.along] > (LONGEST_BESIDE if beside else LONGEST):
            return False
        full = [each.key for m in self.members for each in m.values if all(each.strides)]
        return len(set(full)) < len(full) or self._handed_on()

    def _handed_on(self) -> bool:
        """Whether one of them reads what another leaves for every element."""
        made = {each.key for m in self.members if m.role == "each" for each in m.outs}
        return any(each.key in made for m in self.members for each in m.values)

    def takes(self, sweep: Sweep) -> bool:
        """Whether a sweep joins the group; if so, it is a member now."""
        if isinstance(sweep, Slide) or 0 in _sizes(sweep):
            return False
        order = self._order(sweep)
        if order is None:
            return False
        member, along = self._member(sweep, order)
        if member is None or not self._in_turn(member):
            return False
        self.members.append(member)
        self.along = along
        return True

    def _member(self, sweep: Each | Fold, order: Sequence[int]) -> tuple[Member | None, int | None]:
        """The sweep by the axes of the group, and along which axis rows lie with it."""
        sizes = _sizes(sweep)
        rank = len(sweep.outs[0].sizes) if isinstance(sweep, Fold) else len(sizes)
        real = [axis for axis, size in enumerate(sizes) if size > 1]
        folded = [order[at] for at, axis in enumerate(real) if axis >= rank]
        kept = [order[at] for at, axis in enumerate(real) if axis < rank]
        role: Role = "each"
        along = self.along
        if isinstance(sweep, Fold):
            if len(folded) == 1 and along in (None, folded[0]):
                role, along = "row", folded[0]
            elif len(kept) == 1 and along == kept[0] and sweep.folding in ("sum", "mean"):
                role = "column"
            else:
                return None, None

        def placed(view: View) -> Placed:
            strides = [0] * len(self.sizes)
            for at, axis in enumerate(real):
                if axis < len(view.sizes):
                    strides[order[at]] = view.strides[axis]
            return Placed(view, tuple(strides))

        outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
        others = sweep.others if isinstance(sweep, Fold) else ()
        found = Member(
            sweep,
            role,
            tuple(map(placed, outs)),
            tuple(placed(view) for _, view in sweep.values),
            tuple(placed(view) for _, view in others),
        )
        return found, along

    def _in_turn(self, member: Member) -> bool:
        """Whether it finds all that it reads, and writes what no other looks at differently."""
        made = {each.view.slot: (each.key, m.role) for m in self.members for each in m.outs}
        for each in (*member.values, *member.others):
            key, role = made.get(each.view.slot, (each.key, "each"))
            if key != each.key or role == "column":
                return False
        seen = {each.view.slot for m in self.members for each in (*m.outs, *m.values, *m.others)}
        seen |= {each.view.slot for each in (*member.values, *member.others)}
        return not any(each.view.slot in seen for each in member.outs)

    def _order(self, sweep: Each | Fold) -> list[int] | None:
        """The group's axis of each of a sweep's that has more than one element."""
        sizes = _sizes(sweep)
        real = [axis for axis, size in enumerate(sizes) if size > 1]
        if sorted(sizes[axis] for axis in real) != sorted(self.sizes):
            return None
        if not self.members:
            return list(range(len(real)))
        known = {
            each.view.slot: each.strides
            for m in self.members
            for each in (*m.outs, *m.values)
            if all(each.strides)
        }
        outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
        for view in (*(view for _, view in sweep.values), *outs):
            there = known.get(view.slot)
            if there is None or len(view.sizes) != len(sizes):
                continue
            places = {pair: axis for axis, pair in enumerate(zip(self.sizes, there, strict=True))}
            found = [places.get((sizes[axis], view.strides[axis])) for axis in real]
            if len(places) == len(self.sizes) and None not in found:
                order = [axis for axis in found if axis is not None]
                return order if len(set(order)) == len(order) else None
        return None


def _sizes(sweep: Each | Fold) -> tuple[int, ...]:
    """Of all that a sweep looks at, folded axes last."""
    return sweep.values[0][1].sizes if isinstance(sweep, Fold) else sweep.out.sizes


def groups(sweeps: Sequence[Sweep]) -> Iterator[Sweep | Group]:
    """The sweeps in turn, those that become one as a group."""
    at = 0
    while at < len(sweeps):
        group = _from(sweeps[at:])
        if group is None:
            yield sweeps[at]
            at += 1
        else:
            yield group
            at += len(group.members)


def _from(sweeps: Sequence[Sweep]) -> Group | None:
    """The largest group that begins with the first of the sweeps."""
    first = sweeps[0]
    if isinstance(first, Slide):
        return None
    group = Group(tuple(size for size in _sizes(first) if size > 1))
    for sweep in sweeps:
        if not group.takes(sweep):
            break
    while group.members and not group.worthwhile:
        group.members.pop()
    return group if group.members else None


def slots(group: Group) -> Mapping[int, View]:
    """Every slot that the sweeps look at, with one of their views of it."""
    return {
        each.view.slot: each.view for m in group.members for each in (*m.outs, *m.values, *m.others)
    }
