"""Build charts as Vega-Lite specifications, and as plain rows for readers without scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from icewright.app.web.api import models
from icewright.core.tally import closeness
from icewright.ports.views import TrendStep

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_TENS = 10
_UNITS: Mapping[TrendStep, tuple[str, str]] = {  # of Vega-Lite: its time unit, and the format of labels
    TrendStep.DAY: ("utcyearmonthdate", "%d %b"),
    TrendStep.HOUR: ("utcyearmonthdatehours", "%H:%M"),
    TrendStep.MINUTE: ("utcyearmonthdatehoursminutes", "%H:%M"),
}
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_TICKS = 5  # the axis ends with one, above all values
_HEALTH_SCALE: Mapping[str, Any] = {"scale": {"domain": [0, 100]}, "axis": {"tickCount": _TICKS}}
_INTEGER_AXIS = {"tickMinStep": 1, "format": ",d", "tickCount": _TICKS}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram."""

    label: str
    count: int
    height: float  # percent of the tallest
    url: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its Vega-Lite specification, and the data as a table."""

    title: str
    spec: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def bars(counts: Iterable[tuple[str, int]], urls: Sequence[str] = (), tones: Sequence[str] = ()) -> list[Bar]:
    """Lay out counts as the bars of a histogram."""
    pairs = list(counts)
    tallest = max((count for _, count in pairs), default=0) or 1
    return [
        Bar(label, count, 100 * count / tallest, urls[i] if urls else "", tones[i] if tones else "")
        for i, (label, count) in enumerate(pairs)
    ]


def health(tens: Sequence[int], unknown: int) -> list[Bar]:
    """Return the bars of tables by health in tens, and a last bar of those whose health is unknown."""
    labels = [f"{ten * 10}\u2013{100 if ten == _TENS - 1 else ten * 10 + 9}" for ten in range(_TENS)]
    tones = ["bad"] * 5 + ["warn"] * 3 + ["good"] * 2 + ["calm"]
    counted = [*zip(labels, tens or [0] * _TENS, strict=True), ("none", unknown)]
    urls = ["/tables?sort=health"] * _TENS + ["/tables?state=new&state=unreadable"]
    return bars(counted, urls, tones)


def total_savings(points: Sequence[models.TrendStepSums]) -> models.Saved:
    """Return the sums over all steps of a trend."""
    names = models.Saved.model_fields
    return models.Saved(**{name: sum(getattr(point.saved, name) for point in points) for name in names})


def spend(trend: models.Trend, now: datetime, period: str) -> Chart | None:
    """Return the chart of GB-hours by step and pool, None without spending."""
    sums: dict[tuple[datetime, str], float] = {}
    for point in trend.points:
        key = point.at, point.pool or "service"
        sums[key] = sums.get(key, 0.0) + point.saved.gb_hours
    return _bars(sums, trend, now, f"Cost per {trend.step}, the last {period}", ("pool", "GB-hours"))


def removed(trend: models.Trend, now: datetime, period: str) -> Chart | None:
    """Return the chart of what runs removed by step and kind, None where they removed nothing."""
    sums: dict[tuple[datetime, str], float] = {}
    for point in trend.points:
        for kind, number in (
            ("fewer data files", point.saved.data_files),
            ("snapshots expired", point.saved.snapshots),
            ("files deleted", point.saved.deleted_files),
        ):
            sums[point.at, kind] = sums.get((point.at, kind), 0) + number
    return _bars(sums, trend, now, f"Removed per {trend.step}, the last {period}", ("kind", "number"), stacked=False)


def health_and_files(trend: models.Trend, now: datetime, period: str) -> list[Chart]:
    """Return charts of health and of data files by day, none before the second day."""
    days = list(trend.health)
    if len({day.day for day in days} | {now.date()}) < 2:  # noqa: PLR2004 - a line has two ends
        return []
    if days[-1].day < now.date():
        days.append(days[-1].model_copy(update={"day": now.date()}))
    number = days[-1].tables
    of_tables = "" if number == 1 else f", the mean of {number} tables"
    return [
        _daily_line(
            f"Health by day, the last {period}{of_tables}",
            [(day.day, round(day.health, 1)) for day in days],
            "health",
            _HEALTH_SCALE,
        ),
        _daily_line(
            f"Data files by day, the last {period}",
            [(day.day, day.files) for day in days],
            "data files",
            {"axis": _INTEGER_AXIS},
        ),
    ]


def _daily_line(title: str, points: Sequence[tuple[date, float]], name: str, vertical: Mapping[str, Any]) -> Chart:
    """Return the chart of a value by day, as a line that is level until the next day."""
    steps = [(day.isoformat(), value) for day, value in points]
    spec = _step_line(steps, points[-1][0] - points[0][0], {"title": name, **vertical})
    return Chart(title, spec, ("day (UTC)", name), tuple(points))


def _step_line(points: Sequence[tuple[str, float]], span: timedelta, vertical: Mapping[str, Any]) -> str:
    """Return the specification of a line whose values last from each written time to the next."""
    return _spec(
        [{"at": at, "value": value} for at, value in points],
        {
            "mark": {"type": "line", "interpolate": "step-after", "point": True},
            "encoding": {
                "x": {
                    "field": "at",
                    "type": "temporal",
                    "scale": {"type": "utc"},
                    "title": None,
                    "axis": _time_axis(span),
                },
                "y": {"field": "value", "type": "quantitative", "scale": {"nice": _TICKS}, **vertical},
            },
        },
        height=160,
    )


def _bars(
    sums: Mapping[tuple[datetime, str], float],
    trend: models.Trend,
    now: datetime,
    title: str,
    names: tuple[str, str],
    *,
    stacked: bool = True,
) -> Chart | None:
    """Return the chart of a bar for each step and kind, stacked or side by side; None where all sums are 0."""
    if not any(sums.values()):
        return None
    steps = [trend.since]
    while steps[-1] + trend.step.length <= now:
        steps.append(steps[-1] + trend.step.length)
    kinds = sorted({kind for _, kind in sums})
    rows = [(step, kind, sums.get((step, kind), 0)) for step in steps for kind in kinds]
    values = [{"at": at.isoformat(), "kind": kind, "sum": round(number, 9)} for at, kind, number in rows]
    unit, label = _UNITS[trend.step]
    encoding = {
        "x": {
            "field": "at",
            "type": "ordinal",
            "timeUnit": unit,
            "title": None,
            "axis": {"format": label, "labelAngle": 0, "labelOverlap": True, "labelSeparation": 8},
        },
        "y": {
            "field": "sum",
            "type": "quantitative",
            "title": names[1],
            "scale": {"nice": _TICKS},
            "axis": {"tickCount": _TICKS},
        },
        **({} if stacked else {"xOffset": {"field": "kind"}}),
        "color": {"field": "kind", "type": "nominal", "title": None, "legend": {"orient": "top"}},
    }
    spec = _spec(values, {"mark": {"type": "bar", "cornerRadiusEnd": 2}, "encoding": encoding}, height=150)
    shown = tuple((_step_label(at, trend.step), kind, number) for at, kind, number in rows if number)
    return Chart(title, spec, (f"{trend.step} (UTC)", *names), shown)


def _step_label(at: datetime, step: TrendStep) -> str:
    return f"{at:%Y-%m-%d}" if step is TrendStep.DAY else f"{at:%Y-%m-%d %H:%M}"


def file_history(runs: Sequence[models.Run]) -> Chart | None:
    """Return the chart of data files before and after each run, None for fewer than two runs."""
    points = []
    for run in sorted(runs, key=lambda run: run.started):
        for at, side in ((run.started, run.before), (run.finished, run.after)):
            if "files" in side:
                points.append((at.isoformat(timespec="seconds"), str(run.operation), int(side["files"])))
    if len(runs) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    span = max(run.finished for run in runs) - min(run.started for run in runs)
    spec = _step_line([(at, files) for at, _, files in points], span, {"title": "data files", "axis": _INTEGER_AXIS})
    return Chart(
        "Data files, before and after each run", spec, ("time (UTC)", "operation", "data files"), tuple(points)
    )


def _time_axis(span: timedelta) -> Mapping[str, Any]:
    """Return a time axis whose labels are fine enough to differ from one to the next."""
    short = "%H:%M:%S" if span < _HOUR / 6 else "%H:%M"
    return {"format": short if span < _DAY else "%d %b", "labelOverlap": True, "tickCount": 6}


def costs(runs: Sequence[models.Run]) -> Chart | None:
    """Return the chart of actual against predicted cost of runs, None without predictions."""
    pairs = tuple(
        (str(run.operation), float(run.metrics["gb_hours_predicted"]), float(run.gb_hours))
        for run in runs
        if run.metrics.get("gb_hours_predicted") and run.gb_hours
    )
    if not pairs:
        return None
    values = [{"operation": operation, "predicted": predicted, "real": real} for operation, predicted, real in pairs]
    spec = _spec(values, {"layer": _cost_layers([cost for _, *both in pairs for cost in both])}, height=160)
    return Chart(_cost_title(pairs), spec, ("operation", "predicted", "real"), pairs)


def _cost_layers(costs: Sequence[float]) -> Sequence[Mapping[str, Any]]:
    """Return the line on which runs cost what was predicted, and above it a point for each run."""
    ends = min(costs) / 2, max(costs) * 2
    axis = {"type": "quantitative", "scale": {"type": "log", "domain": ends, "nice": False}}
    axis_labels = {"tickCount": 4, "format": "~g"}
    points = {
        "mark": {"type": "point", "filled": True, "size": 50},
        "encoding": {
            "x": {"field": "predicted", **axis, "title": "predicted GB-hours", "axis": axis_labels},
            "y": {"field": "real", **axis, "title": "real GB-hours", "axis": axis_labels},
            "color": {"field": "operation", "type": "nominal", "title": None, "legend": {"orient": "top"}},
        },
    }
    line = {
        "data": {"values": [{"at": end} for end in ends]},
        "mark": {"type": "line", "strokeDash": [4, 4], "opacity": 0.5},
        "encoding": {"x": {"field": "at", **axis}, "y": {"field": "at", **axis}},
    }
    return [line, points]


def _cost_title(pairs: Sequence[tuple[str, float, float]]) -> str:
    """Return what the chart of costs shows, with how many of its runs cost about what was predicted."""
    title = "What runs cost, against what was predicted"
    counts = Counter(closeness({"gb_hours": real, "gb_hours_predicted": predicted}) for _, predicted, real in pairs)
    if not (judged := counts["near"] + counts["far"]):
        return title
    small = f", {counts['small']} too small to judge" if counts["small"] else ""
    return f"{title}: {counts['near']} of {judged} within 2x{small}"


def _spec(values: Sequence[Mapping[str, Any]], drawing: Mapping[str, Any], height: int) -> str:
    """Return the specification of a chart of values that has one mark with its encoding, or layers of them."""
    base = {"$schema": _SCHEMA, "width": "container", "height": height, "data": {"values": values}}
    return json.dumps({**base, **drawing})
