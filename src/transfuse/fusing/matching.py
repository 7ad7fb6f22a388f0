"""Which operations around a transposed convolution make one chain with it.

From the convolution on, a value that one operation of the vocabulary uses, and nothing else, goes
on into it. One that several use goes on where pointwise operations alone lead from all of them to
one value, as in ``y * sigmoid(y)``: these are one expression. Before the convolution the same is
looked for backwards, for pointwise operations and one pool.
"""

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import fx, nn
from torch.fx import Node

from transfuse import stages
from transfuse.fusing.effects import Effects
from transfuse.fusing.examples import Examples
from transfuse.fusing.match import WRONG, Match
from transfuse.fusing.meanings import CHANNELLED, Beside, Nothing, OneStage, Pointwise
from transfuse.fusing.norms import mean_name, norm_of, over
from transfuse.fusing.stopping import LEFT
from transfuse.fusing.vocabulary import Reading, convolution, read
from transfuse.maths.expr import Expr, X, substituted
from transfuse.maths.expr import name as symbol
from transfuse.stages import Function, Stage
from transfuse.stages.window import AdaptivePool, Window


class NoStage(Exception):
    """Why an operation does not join a chain."""


def matches(
    graph: fx.Graph, root: nn.Module | None, compiled: bool
) -> Iterator[Match | tuple[Node, str]]:
    """Every transposed convolution of a graph with what joins it, in order, or why none can be.

    ``compiled``: whether a compiler fuses what is left, so that pointwise operations take one pass.
    """
    effects = Effects(graph.nodes, root)
    examples = Examples(root)
    taken: set[Node] = set()
    for node in graph.nodes:
        found = convolution(node)
        if found is None:
            continue
        rank, arguments = found
        x, weight = arguments["input"], arguments["weight"]
        if not isinstance(x, Node) or not isinstance(weight, Node):
            yield node, "its input and weight are not values of the graph"
            continue
        match = Match(node, rank, arguments, [node], x, node)
        why = examples.unfit(match) or _fixed(match)
        if why:
            yield node, why
            continue
        growing = _Growing(match, effects, examples, taken)
        growing.forward()
        growing.backward(compiled)
        why = examples.slower(match)
        if why:
            yield node, f"{LEFT}: {why}"
            continue
        taken.update(match.taken)
        yield match


def _fixed(match: Match) -> str:
    """Why a convolution's own arguments are none that a call can give; mostly empty."""
    bias = match.arguments["bias"]
    return "" if bias is None or isinstance(bias, Node) else "its bias is no value of the graph"


class _Growing:
    """A match that takes in what it can."""

    def __init__(
        self, match: Match, effects: Effects, examples: Examples, others: set[Node]
    ) -> None:
        self.match, self.effects, self.examples, self.others = match, effects, examples, others

    # --- forward -----------------------------------------------------------------------------

    def forward(self) -> None:
        """Take in what follows, up to what cannot join; says why."""
        while True:
            try:
                self._next()
            except NoStage as end:
                self.match.why = str(end)
                return

    def _next(self) -> None:
        match = self.match
        value = match.result
        users = list(value.users)
        if not users:
            raise NoStage("nothing uses its result")
        if len(users) == 1 and users[0].op == "output":
            raise NoStage("its result is returned")
        reading = read(users[0]) if len(users) == 1 else None
        if reading is not None and not isinstance(reading.row, Pointwise):
            self._join_one(value, users[0], reading)
            return
        region, norm = self._region(value)
        self._join([*region], [norm or self._mapped(region, value)])

    def _join_one(self, value: Node, user: Node, reading: Reading) -> None:
        """Take in one operation that is not pointwise."""
        row, bound = reading.row, reading.bound
        what = reading.text
        if row.rank not in (None, self.match.rank):
            raise NoStage(f"{what} is not for {self.match.rank} spatial axes")
        if isinstance(row, Nothing):
            given = {k: v for k, v in bound.items() if k != "input"}
            if bound["input"] is not value or not row.when(**given):
                raise NoStage(f"{what} changes its values")
            self._join([user], [])
            self.match.contiguous = self.match.contiguous or row.contiguous
            return
        if isinstance(row, Beside):
            self._join([user], [self._beside(value, bound)])
            return
        assert isinstance(row, OneStage)
        stage = self._whole(value, row, bound)
        taken = [user]
        if row.pair:
            (only, *more) = [*user.users] or [user]
            if more or not _takes_values(only):
                raise NoStage(f"the indices of {what} are used")
            taken.append(only)
        self._join(taken, [stage])

    def _region(self, value: Node) -> tuple[dict[Node, Expr], Stage | None]:
        """The pointwise operations from a value to the next one that all of its uses lead to.

        Where means are among them, they go on to the norm that they are, written by hand.
        """
        found: dict[Node, Expr] = {value: X}
        means: dict[str, Expr] = {}
        waiting = {*value.users}
        several = len(waiting) > 1
        for node in self.effects.nodes[self.effects.at[value] + 1 :]:
            if node not in waiting:
                continue
            reading = read(node)
            if reading is None or node in self.others:
                raise NoStage(_ends(value, node, several))
            word = self._mean(reading, found)
            if word and several:
                name = mean_name(len(means), word)
                means[name] = found[reading.bound["input"]]
                found[node] = symbol(name)
            elif not isinstance(reading.row, Pointwise):
                raise NoStage(_ends(value, node, several))
            else:
                if reading.inplace and (
                    reading.bound["input"] not in found or len(reading.bound["input"].users) > 1
                ):
                    raise NoStage(f"{reading.text} writes to a tensor that is used elsewhere, too")
                found[node] = self._expression(reading, found)
            waiting.discard(node)
            norm = norm_of(found[node], means) if means else None
            if not waiting and not found[node].logical and (norm or not means):
                del found[value]
                return found, norm
            waiting.update(node.users)
            several = several or len(waiting) > 1
        raise NoStage(_shared(value, "nothing"))

    def _mean(self, reading: Reading, known: Mapping[Node, Expr]) -> str | None:
        """What an operation is a mean over, such as norms have, with all axes kept."""
        bound = reading.bound
        if reading.row.name != "mean" or bound["keepdim"] is not True or bound["dtype"] is not None:
            return None
        try:
            return over(bound["dim"], self.match.rank) if bound["input"] in known else None
        except WRONG:
            return None

    def _expression(self, reading: Reading, known: Mapping[Node, Expr]) -> Expr:
        """What a pointwise operation computes, where expressions for some values are known."""
        row = reading.row
        assert isinstance(row, Pointwise)

        def part(key: str, given: Any) -> Any:
            if not isinstance(given, Node):
                return given
            if given in known:
                return known[given]
            stand_in = self.match.operand(given, key not in CHANNELLED)
            return symbol(f"operand{[*self.match.operands].index(id(stand_in))}")

        try:
            found = row.expr(*(part(k, v) for k, v in reading.bound.items()))
        except WRONG as error:
            raise NoStage(f"{reading.text}: {error}") from None
        if not isinstance(found, Expr):
            raise NoStage(f"{reading.text} is of numbers alone")
        return found

    def _mapped(self, region: Mapping[Node, Expr], value: Node) -> Stage:
        """The stage of a region: by its own name where it is one operation that has one."""
        readings = {node: _known(read(node)) for node in region}
        last, expr = [*region.items()][-1]
        if len(region) == 1:
            bound = readings[last].bound
            row = readings[last].row
            assert isinstance(row, Pointwise)
            (_, first), *rest = bound.items()
            if first is value and all(each is not value for _, each in rest):
                given = [
                    self.match.operand(v, k not in CHANNELLED) if isinstance(v, Node) else v
                    for k, v in rest
                ]
                try:
                    stage = row.stage(*given)
                except WRONG as error:
                    raise NoStage(f"{readings[last].text}: {error}") from None
                if stage is not None:
                    return stage
        words = [each.row.name for each in readings.values()]
        name = "_".join(words) if len(words) < 4 else f"{words[0]}_to_{words[-1]}"
        stand_ins = {
            f"operand{at}": each for at, (each, _) in enumerate(self.match.operands.values())
        }
        # Called by their order in it, so that the same operations elsewhere are the same function.
        found = [each for each in expr.names if each in stand_ins]
        used = {each: f"operand{at}" for at, each in enumerate(found)}
        renamed = substituted(expr, {old: symbol(new) for old, new in used.items()})
        return _function(name, renamed, used.values())(*(stand_ins[each] for each in used))

    def _beside(self, value: Node, bound: Mapping[str, Any]) -> Stage:
        tensors, dim = bound["tensors"], bound["dim"]
        given = [*tensors] if isinstance(tensors, list | tuple) else []
        if (
            len(given) != 2
            or given.count(value) != 1
            or not all(isinstance(n, Node) for n in given)
        ):
            raise NoStage(f"cat is of {len(given)} tensors; the stage is of the values and another")
        if dim not in (1, -self.match.rank - 1):
            raise NoStage(f"cat is along axis {dim}, not along the channels")
        first = given[1] is value
        return stages.cat(self.match.operand(given[0] if first else given[1], False), first)

    def _whole(self, value: Node, row: OneStage, bound: Mapping[str, Any]) -> Stage:
        (_, first), *rest = bound.items()
        if first is not value or any(each is value for _, each in rest):
            raise NoStage(f"{row.name} takes the value as another argument than its first")
        given = {}
        for key, each in rest:
            if isinstance(each, Node) and key not in CHANNELLED:
                raise NoStage(f"{row.name}: {key} is known only when it is called")
            if any(isinstance(part, Node) for part in _parts(each)):
                raise NoStage(f"{row.name}: {key} is known only when it is called")
            given[key] = self.match.operand(each, False) if isinstance(each, Node) else each
        try:
            stage = row.make(**given)
            stage.sees(self.match.rank)
        except WRONG as error:
            raise NoStage(f"{row.name}: {error}") from None
        return stage

    def _join(self, nodes: list[Node], then: list[Stage]) -> None:
        """Take in operations at the end; nothing changes where they do not fit."""
        match, last = self.match, nodes[-1]
        names = ", ".join(text(node) for node in nodes)
        if any(node in self.others for node in nodes):
            raise NoStage(f"{names} belongs to another one already")
        taken = [*match.taken, *nodes]
        why = (
            self.effects.in_the_way(taken, last)
            or self.effects.written_later(nodes, taken, last)
            or self.effects.moved_again(nodes, self.others)
            or self._unfit(last, (), then)
        )
        if why:
            raise NoStage(f"{names}: {why}")
        match.taken, match.result = taken, last
        match.then += then

    def _unfit(self, result: Node, before: Iterable[Stage], then: Iterable[Stage]) -> str:
        """Why further stages do not make a chain; empty where they do."""
        before, then = [*before], [*then]
        if not before and not then:
            return ""
        behind = [*self.match.then, *then]
        formed = next((at for at, stage in enumerate(behind) if stage.reshapes), len(behind))
        try:
            self.match.chain(before, then)
            for stage in behind[formed : formed + 1]:
                stage.form((2,) * (self.match.rank + 2))
        except WRONG as error:
            return str(error)
        if any(each.held for each in behind[formed + 1 :]):
            return f"behind {behind[formed]} the axes are others, and it reads a tensor"
        return self.examples.unfit(self.match, before, then, result)

    # --- backward ----------------------------------------------------------------------------

    def backward(self, compiled: bool) -> None:
        """Take in pointwise operations and one pool before the convolution, where it pays.

        It does where they cost fewer passes over memory than torch takes for them by itself.
        """
        match, pooled = self.match, False
        states = [(match.x, match.before, match.taken)]
        alone = self.examples.passes(match)
        while True:
            try:
                pooled = self._previous(pooled) or pooled
            except NoStage:
                break
            states.append((match.x, match.before, match.taken))
        for state in reversed(states):
            match.x, match.before, match.taken = state
            saved = len(match.taken) - len(states[0][2])
            passes = self.examples.passes(match)
            if passes is None or alone is None or not saved:
                return
            if passes - alone < (1 if compiled else saved):
                return

    def _previous(self, pooled: bool) -> bool:
        """Take in the operation that makes the input; whether it is a pool."""
        node = self.match.x
        reading = read(node)
        if reading is None or node in self.others or not {*node.users} <= {*self.match.taken}:
            raise NoStage("")
        if isinstance(reading.row, OneStage) and not pooled:
            value = reading.bound["input"]
            if not isinstance(value, Node) or reading.row.rank != self.match.rank:
                raise NoStage("")
            stage = self._whole(value, reading.row, reading.bound)
            if not isinstance(stage, Window | AdaptivePool):
                raise NoStage("")
            self._put_before([node], value, stage)
            return True
        if not isinstance(reading.row, Pointwise):
            raise NoStage("")
        region, value = self._region_before(node)
        known: dict[Node, Expr] = {value: X}
        for each in region:
            known[each] = self._expression(_known(read(each)), known)
        del known[value]
        if known[node].logical:
            raise NoStage("")
        self._put_before(region, value, self._mapped(known, value))
        return False

    def _region_before(self, last: Node) -> tuple[list[Node], Node]:
        """The fewest pointwise operations that make a value of one other, and that one."""
        region = {last}
        while True:
            outer = {each for node in region for each in node.all_input_nodes} - region
            data = [each for each in outer if not self.examples.steady(each)]
            if len(data) == 1:
                return sorted(region, key=self.effects.at.__getitem__), data[0]
            if not data:
                raise NoStage("")
            inner = [each for each in data if self._within(each, region)]
            if not inner:
                raise NoStage("")
            region.add(max(inner, key=self.effects.at.__getitem__))

    def _within(self, node: Node, region: set[Node]) -> bool:
        reading = read(node)
        return (
            reading is not None
            and isinstance(reading.row, Pointwise)
            and node not in self.others
            and {*node.users} <= region
        )

    def _put_before(self, nodes: list[Node], value: Node, stage: Stage) -> None:
        match = self.match
        for node in nodes:
            reading = _known(read(node))
            inner = reading.bound["input"] if reading.inplace else None
            seen = inner is not None and (
                not isinstance(inner, Node)
                or len(inner.users) > 1
                or (inner not in nodes and not self.effects.fresh(inner))
            )
            if seen:
                raise NoStage("")
        taken = [*nodes, *match.taken]
        before, x = [stage], match.x
        effects, last = self.effects, match.result
        if effects.in_the_way(taken, last) or effects.written_later(nodes, taken, last):
            raise NoStage("")
        match.x = value
        if self._unfit(match.result, before, ()):
            match.x = x
            raise NoStage("")
        match.taken, match.before = taken, [*before, *match.before]


def _known(reading: Reading | None) -> Reading:
    assert reading is not None
    return reading


def _parts(given: object) -> Iterable[object]:
    return given if isinstance(given, list | tuple) else ()


def _takes_values(node: Node) -> bool:
    """Whether it takes the first of a pair: ``pair[0]`` or ``pair.values``."""
    if node.op != "call_function" or len(node.args) != 2:
        return False
    wanted = {operator.getitem: 0, getattr: "values"}.get(node.target)  # type: ignore[arg-type]
    return wanted is not None and bool(node.args[1] == wanted)


def _function(name: str, expr: Expr, names: Iterable[str]) -> Function:
    """A pointwise function of the running value and of further arguments."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(each, kind) for each in (X.name, *names)])

    def body(*arguments: Expr) -> Expr:
        return expr

    body.__signature__ = signature  # type: ignore[attr-defined]
    return Function(body, name=name)


def text(node: Node) -> str:
    """What an operation is called in reasons and lists."""
    found = convolution(node)
    if found is not None:
        return f"conv_transpose{found[0]}d"
    reading = read(node)
    if reading is not None:
        return reading.text
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", node.target))
    return str(node.target)


def _ends(value: Node, node: Node, several: bool) -> str:
    what = "what returns it" if node.op == "output" else text(node)
    if several:
        return _shared(value, what)
    if convolution(node) is not None:
        return f"{what} follows, with a chain of its own"
    return f"{what} is not of the vocabulary"


def _shared(value: Node, what: str) -> str:
    return (
        f"its result is used {len(value.users)} times, not by pointwise operations alone ({what}); "
        "chains that share a convolution's result are out of scope"
    )
