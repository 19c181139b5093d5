"""Says what the likely cause of a difference is, in the user's words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hvd_keras._verify.records import Event


@dataclasses.dataclass
class Difference:
    """The first thing that differs.

    Args:
        kind: "rows", "loss", "gradients", "weights", "results" or "draws".
        step: The step; 0: before the first one.
        what: What differs.
        ranks: Its value on the ranks.
        one: Its value in one process.
        cause: Why, probably; "" if nothing is known.
        details: What the cause is guessed from.
        name: The array that differs; "" if rounding cannot be why.
        gap: How large that is, in parts of the largest element.
    """

    kind: str
    step: int
    what: str
    ranks: str
    one: str
    cause: str = ""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    gap: float = 0.0

    def text(self) -> str:
        """Returns it in a sentence or two."""
        where = f"Step {self.step}" if self.step else "Before the first step"
        if self.kind == "draws":
            where = f"Step {max(self.step, 1)}"  # it may be traced before
            text = f"{where}: {self.what} {self.ranks}."
            return f"{text} {self.cause}".rstrip()
        text = f"{where}: {self.what}: {self.ranks}; one process: {self.one}."
        return f"{text} {self.cause}".rstrip()


class Facts:
    """What is known of the script.

    Args:
        notes: The events of kind "note" of the one process, and those of the
            ranks' loss and local updates.
        size: The number of ranks.
    """

    def __init__(self, notes: Sequence[Event], size: int) -> None:
        self.size = size
        self._models = [e.facts for e in notes if e.key == "model"]
        self._model: str | None = None  # the class that takes this step
        self._notes = notes
        self.rows: list[int] = []  # of each rank, in this step
        self.rows_of_one = 0
        self.changed: list[str] = []
        self.loss: Difference | None = None

    def note_rows(self, rows: list[int], rows_of_one: int) -> None:
        self.rows, self.rows_of_one = rows, rows_of_one
        self.loss = self.loss  # kept until a gradient explains it

    @property
    def models(self) -> list[dict[str, Any]]:
        """What is known of the model that trains, or of all of them."""
        chosen = [m for m in self._models if m["model"] == self._model]
        return chosen or self._models

    def note_model(self, event: Event) -> None:
        """Keeps whose step it is, if the event says so."""
        self._model = event.facts.get("model", self._model)

    def note_changed(self, names: list[str]) -> None:
        self.changed = names

    def take_loss(self) -> Difference | None:
        found, self.loss = self.loss, None
        return found

    def are_uneven(self) -> bool:
        return len(set(self.rows)) > 1

    def own(self, name: str) -> str:
        """Returns the user's class that has a method; "" if none has."""
        for model in self.models:
            if model["own"].get(name):
                return str(model["own"][name])
        return ""

    def own_optimizer(self) -> tuple[str, str]:
        """Returns a method of an optimizer of the user, and its class."""
        for model in self.models:
            for name, kind in model["optimizer"].items():
                if kind:
                    return name, kind
        return "", ""

    def other_loss(self) -> str:
        """Returns what the ranks have said of their loss; "": nothing."""
        texts = [str(n.facts["text"]) for n in self._notes if n.key == "loss"]
        return texts[0] if texts else ""

    def every(self) -> int:
        """Returns after how many local updates ranks meet; 0: none."""
        found = [
            n.facts["every"] for n in self._notes if n.key == "local_updates"
        ]
        return int(found[0]) if found else 0

    def layers_of_alike_rows(self) -> list[str]:
        """Returns BatchNormalization layers whose rows were all alike."""
        notes = [note for note in self._notes if note.key == "alike"]
        return list(dict.fromkeys(str(n.facts["layer"]) for n in notes))

    def texts(self) -> list[str]:
        """Returns what was made equal for the comparison."""
        found: dict[str, list[str]] = {
            key: [] for key in ("synchronized", "drawn", "without_xla")
        }
        for note in self._notes:
            if note.key in found:
                value = next(iter(note.facts.values()))
                if value not in found[note.key]:
                    found[note.key].append(value)
        texts = []
        if found["synchronized"]:
            texts.append(
                "Made equal: plain BatchNormalization ("
                f"{', '.join(found['synchronized'])}) took the statistics of "
                "the whole batch. In training each rank takes those of its own "
                "rows; `hvd.SyncBatchNormalization` takes those of all."
            )
        if found["drawn"]:
            texts.append(
                f"Made equal: random numbers in a step "
                f"({', '.join(found['drawn'])}) were the same for each row."
            )
        if found["without_xla"]:
            texts.append(f"XLA was off for {', '.join(found['without_xla'])}.")
        if self.changed:
            texts.append(
                f"Left out: {', '.join(self.changed)} of a batch had other "
                "values than in one process, while other parts were the same: "
                "random changes behind `hvd.shard`, or numbers that count "
                "within a batch."
            )
        return texts


def cause_of(found: Difference, facts: Facts) -> str:
    """Returns the likely cause in a sentence, with the cure; "" if unknown."""
    causes = {
        "rows": _of_rows,
        "loss": _of_loss,
        "gradients": _of_gradient,
        "weights": _of_weight,
        "results": _of_result,
        "draws": _of_draws,
    }
    every = facts.every()
    if every and found.kind not in ("rows", "draws"):
        return (
            f"This is by design: with `local_updates`, ranks of other groups "
            f"reduce no gradients with this one, and average their weights "
            f"every {every} updates. To compare the rest of the script, leave "
            "`local_updates` out."
        )
    if found.what == "steps":
        return (
            "Likely cause: this process decided by values of its own whether "
            "to take a step (a loss that is not finite, a metric, the time): "
            "let all ranks decide alike, by `hvd.allreduce` of that value."
        )
    text = causes[found.kind](found, facts)
    return f"Likely cause: {text}" if text else ""


def _of_rows(found: Difference, facts: Facts) -> str:
    of = found.details
    if of["same_on_ranks"]:
        return (
            "all ranks train on the same rows: give `fit` the data by "
            "`hvd.shard(...)`, which deals them out."
        )
    if of["is_subset"] or of["num_rows_of_one"] < sum(of["num_rows"]):
        return (
            "the script cuts its data by `hvd.rank()`, so one process lacks "
            "what the other ranks have: give all of them to `hvd.shard`."
        )
    if of["seen_elsewhere"]:
        return (
            "ranks read the data in different orders, so rows come twice or "
            "never: a shuffle without a seed, `deterministic=False`, or a "
            "rank that has looked at its data before. Give the shuffle a seed, "
            "or shuffle by `hvd.shard(..., shuffle=True)`."
        )
    return (
        "ranks read different data: they are made or shuffled by random "
        "numbers without a seed."
    )


def _rows_text(facts: Facts) -> str:
    return " and ".join(map(str, facts.rows))


def _of_loss(found: Difference, facts: Facts) -> str:
    return _of_mean(found, facts)


def _of_mean(found: Difference, facts: Facts) -> str:
    """Says whose mean or sum is that of the rank's rows alone."""
    ratio = found.details.get("ratio")
    whose = ""
    for name in ("compute_loss", "train_step"):
        if facts.own(name):
            whose = f"`{name}` of `{facts.own(name)}`"
            break
    losses = [loss for model in facts.models for loss in model["losses"]]
    user = whose or (f"the loss `{losses[0]}`" if losses else "the loss")
    if ratio is not None and abs(ratio - 1.0) > 1e-3:
        size = facts.size
        if abs(ratio * size - 1.0) < 1e-2:
            return (
                f"{user} is a sum over this rank's rows, and the ranks' mean "
                f"is 1/{size} of the whole: use a mean, or `op=hvd.Sum`."
            )
        if abs(ratio / size - 1.0) < 1e-2:
            return (
                f"gradients of means were summed over {size} ranks: use "
                "`op=hvd.Average`, or reduce once."
            )
    if facts.are_uneven():
        return (
            f"{user} takes a mean over this rank's rows: {_rows_text(facts)}. "
            "Divide by the rows of all ranks, with `hvd.global_mean`."
        )
    more = ""
    if facts.own("train_step"):
        more = ", or changes gradients before they are reduced"
    return (
        f"{user} is no sum over rows: it takes a mean of other counts than "
        "rows (a mask, labels, weights), compares the rows of a batch with "
        f"each other, or draws random numbers{more}. `hvd.global_mean` divides "
        "by the counts of all ranks."
    )


def _of_gradient(found: Difference, facts: Facts) -> str:
    of = found.details
    if of["ranks_differ"]:
        return (
            "this gradient was not reduced over the ranks: a local variable, "
            "a rank outside of the process set, or a step that pairs with "
            "another one."
        )
    method, kind = facts.own_optimizer()
    if kind:
        return (
            f"`{method}` of `{kind}` changes gradients before they are "
            "reduced: each rank changes its own."
        )
    if of["own_are_equal"] and not of["is_mean"]:
        return ""
    if facts.other_loss():
        return facts.other_loss()
    if len(of["only"]) < of["num_gradients"] and of["is_table"]:
        return (
            "the rows of this table are read by numbers that do not depend on "
            "the batch, and their gradients came unmerged from each rank: pass "
            "`sparse_as_dense=True`."
        )
    return _of_mean(found, facts)


def _of_weight(found: Difference, facts: Facts) -> str:
    of = found.details
    kind = of["kind"].split()[0]
    if kind == "rate":
        return (
            "a callback or the script sets the learning rate by values of "
            "this rank (the loss of its batch, a metric): average them over "
            "the ranks first."
        )
    if kind == "state":
        how = "differ by rank" if of["ranks_differ"] else "are no average"
        return (
            f"this state is no moving average of rows, and its values {how}: "
            "say by the `aggregation` of its variable how ranks make one of "
            "it."
        )
    if of["is_first"] and of["ranks_differ"]:
        return (
            "ranks begin with weights of their own: add "
            "`hvd.callbacks.BroadcastGlobalVariablesCallback(0)`, or call "
            "`hvd.broadcast_variables`."
        )
    if of["is_first"]:
        return (
            "the weights are made by random numbers without a seed, or depend "
            "on rank or size."
        )
    method, optimizer = facts.own_optimizer()
    if optimizer:
        return (
            f"`{method}` of `{optimizer}` changes the weights by values of "
            "this rank."
        )
    if of["ranks_differ"]:
        return (
            "something but the optimizer changes this weight, or changes it "
            "by values of this rank (a callback, a constraint, `assign`)."
        )
    return (
        "its gradients were equal, so something but the optimizer changes it."
    )


def _of_result(found: Difference, facts: Facts) -> str:
    of = found.details
    name = found.what.split()[-1]
    if of["kind"] in ("fit", "evaluate"):
        if of["ranks_differ"]:
            return (
                f"{name} is that of this rank's rows alone: add "
                "`hvd.callbacks.MetricAverageCallback()` to `fit` and "
                "`evaluate`."
            )
        return (
            f"{name} does not add up over the ranks: a metric function of the "
            "whole batch, or a metric without variables, is the mean of the "
            "ranks' values. Write it as a `keras.metrics.Metric` whose "
            "variables are sums."
        )
    return (
        "something that Keras does not track (a `tf.Variable`, a buffer, an "
        "attribute) differs by rank, so ranks predict differently."
    )


def _of_draws(found: Difference, facts: Facts) -> str:
    if found.what.startswith("np.random"):
        return (
            "`np.random` has the same seed on all ranks, so their rows get the "
            "same numbers: draw from `np.random.default_rng([seed, "
            "hvd.rank()])`."
        )
    return (
        "the same seed on all ranks, so their rows get the same numbers. Give "
        "`fit` `hvd.callbacks.BroadcastGlobalVariablesCallback(0)`, which "
        "gives each rank its own; in a loop of your own, give layers a "
        "`seed=` with `hvd.rank()`, and set another seed on each rank once the "
        "model is built."
    )
