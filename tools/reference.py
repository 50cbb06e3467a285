"""Generates the reference pages from the code: knobs, metrics, commands, the API and so on. `make docs` writes them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from fastapi.openapi.utils import get_openapi

import icewright
from icewright.app.catalogue import CATALOGUE
from icewright.app.cli import app
from icewright.app.web import api, events
from icewright.core import errors
from icewright.core.alerts import RULES
from icewright.core.kernel import LIMITS
from icewright.core.knob import Knob
from icewright.core.permissions import PERMISSIONS, Role
from icewright.core.policy import KNOBS
from icewright.core.presets import PRESETS
from icewright.core.properties import by_property
from icewright.core.runs import METRICS

_DOCS = Path(__file__).parent.parent / "docs"
_GENERATED_NOTE = "<!-- made by `make docs` from the code: change it there -->\n\n"


def pages() -> dict[str, str]:
    """Return each page's text by its file name."""
    makers = {
        "knobs.md": _knobs,
        "metrics.md": _metrics,
        "errors.md": _errors,
        "commands.md": _commands,
        "api.md": _api,
        "alerts.md": _alerts,
        "prometheus.md": _prometheus,
        "permissions.md": _permissions,
    }
    made = {name: _GENERATED_NOTE + "\n".join(make()) + "\n" for name, make in makers.items()}
    return {**made, "../how-to/compact.md": _with_limits((_DOCS / "how-to" / "compact.md").read_text(encoding="utf-8"))}


def _with_limits(page: str) -> str:
    """Return the page with the table of what Arrow rewrites between its generated note and the next empty line."""
    before, _, rest = page.partition(_GENERATED_NOTE)
    rows = (f"| {limit.arrow} | {limit('…')} |\n" for limit in LIMITS)
    after = rest.partition("\n\n")[2]
    return (
        f"{before}{_GENERATED_NOTE}| Arrow does | left to Spark, for this reason |\n|---|---|\n{''.join(rows)}\n{after}"
    )


def _knobs() -> Iterator[str]:
    yield "# Knobs\n"
    yield "Set in `policy:` rules, by `icewright config set`, by `--set`, or as table property `icewright.<knob>`"
    yield "where the column *by property* allows it or"
    yield "[a rule opens it](configuration.md#what-a-tables-properties-may-set)."
    yield "`icewright config explain TABLE` shows each knob's value for a table and who set it.\n"
    yield "| knob | default | expects | by property | meaning |"
    yield "|---|---|---|---|---|"
    for name, knob in KNOBS.items():
        yield f"| `{name}` | {_default(knob)} | {knob.expects} | {by_property(knob)} | {knob.help} |"
    yield "\n## Presets\n"
    yield "A preset is a set of knobs; a knob that the same rule names wins over it.\n"
    for name, settings in PRESETS.items():
        listed = ", ".join(f"`{k}` {v}" for k, v in settings.items()) or "the defaults above"
        yield f"- `{name}`: {listed}"


def _default(knob: Knob[Any]) -> str:
    match knob.default:
        case None:
            return "not set"
        case bool():
            return str(knob.default).lower()
        case Mapping():
            return ", ".join(f"{k}={v}" for k, v in knob.default.items()) or "none"
    return f"{knob.default} {knob.unit}".strip()


def _metrics() -> Iterator[str]:
    yield "# Metrics of a run\n"
    yield "Each operation of a job reports these in `run --json`, `cycle --json` and `show --json`.\n"
    yield "| metric | meaning |"
    yield "|---|---|"
    for operation, metrics in METRICS.items():
        for name, meaning in metrics.items():
            yield f"| `{operation}.{name}` | {meaning} |"


def _alerts() -> Iterator[str]:
    yield "# Alerts\n"
    yield "Every rule takes `enabled` (true), `severity` (info, warning or critical) and `delay_minutes`: how long what"
    yield "it says must hold before anybody is told. [How to be told](../how-to/alerts.md).\n"
    yield "| rule | raised when | severity | delay | further keys | what to do |"
    yield "|---|---|---|---|---|---|"
    for rule, kind in RULES.items():
        keys = "; ".join(f"`{p.name}` {p.default}: {p.help}" for p in kind.parameters)
        yield f"| `{rule}` | {kind.help} | {kind.severity} | {kind.delay_minutes} min | {keys} | {kind.remedy} |"


def _prometheus() -> Iterator[str]:
    yield "# Prometheus metrics\n"
    yield "Served at `/metrics`. All but those of loops come from the state store, so that every replica says the same:"
    yield "use `max by` or one replica, and never a sum over replicas. Counters are kept beside the history and outlive"
    yield "its pruning. A gauge histogram says how numbers are distributed now: `_bucket`, `_gcount` and `_gsum` are"
    yield "used without `rate`. The usual `process_*` metrics come with them.\n"
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in CATALOGUE.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def _permissions() -> Iterator[str]:
    yield "# Permissions\n"
    yield "An owner owns the catalogs or namespaces that were named with the role; a viewer or operator may be bound to"
    yield "some in the same way, and sees the tables and jobs of these alone. An admin is one everywhere. The API"
    yield "decides by this table; what it refuses stands in the audit log. [Who gets in](../how-to/access.md).\n"
    yield f"| action | meaning | {' | '.join(Role)} |"
    yield f"|---|---|{'---|' * len(Role)}"
    for action, permission in PERMISSIONS.items():
        yield f"| `{action}` | {permission.help} | {' | '.join('yes' if r in permission.roles else '' for r in Role)} |"


def _api() -> Iterator[str]:
    yield "# HTTP API\n"
    yield "The running service describes the same in OpenAPI at `/api/openapi.json`. Every answer that is no success"
    yield "is a problem of RFC 9457. [Who may do what](permissions.md).\n"
    described = get_openapi(
        title="Icewright", version=icewright.__version__, routes=[*events.router.routes, *api.router.routes]
    )
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"## `{method.upper()} {path}`\n"
            yield f"{operation['summary']}. Action: `{operation.get('x-permission', 'anybody')}`.\n"
            for parameter in operation.get("parameters", ()):
                needed = ", required" if parameter.get("required") else ""
                yield f"- {parameter['in']} `{parameter['name']}`: {_json_type(parameter['schema'])}{needed}"
            if body := operation.get("requestBody"):
                yield f"- body: {_content(body)}"
            yield from (
                f"- answer {status}: {_content(answer)}"
                for status, answer in operation["responses"].items()
                if status < "400"
            )
            yield ""
    yield "## Schemas\n"
    for name, schema in described["components"]["schemas"].items():
        yield f"### {name}\n"
        required = schema.get("required", ())
        fields = schema.get("properties")
        for field, kind in (fields or {}).items():
            yield f"- `{field}`: {_json_type(kind)}{', required' if field in required else ''}"
        if fields is None:
            yield _json_type(schema)
        yield ""


def _content(message: Mapping[str, Any]) -> str:
    kinds = message.get("content", {})
    return "; ".join(f"{media} {_json_type(kind.get('schema', {}))}" for media, kind in kinds.items()) or "nothing"


def _json_type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": choices} | {"oneOf": choices}:
            return " or ".join(map(_json_type, choices))
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of {_json_type(items)}"
        case {"type": "object", "additionalProperties": {} as values} if values:
            return f"object of {_json_type(values)}"
        case {"type": kind, "format": detail}:
            return f"{kind} ({detail})"
        case {"type": kind}:
            return str(kind)
    return "any"


def _errors() -> Iterator[str]:
    yield "# Errors\n"
    yield "Terminal: trying again cannot help until somebody changes something. Retryable: the same call may succeed"
    yield "later. Unknown: the action may have happened; the table is read before anything else is done.\n"
    yield "The owner is the part whose [fault](../explanation/faults.md) the error is.\n"
    yield "| error | class | owner | meaning |"
    yield "|---|---|---|---|"
    classes = {errors.TerminalError: "terminal", errors.RetryableError: "retryable", errors.UnknownOutcome: "unknown"}
    for name, error_class in inspect.getmembers(errors, inspect.isclass):
        kind = next((label for base, label in classes.items() if issubclass(error_class, base)), None)
        if kind and error_class not in classes and issubclass(error_class, errors.IcewrightError):
            meaning = " ".join((inspect.getdoc(error_class) or "").split())
            yield f"| `{name}` | {kind} | {error_class.owner} | {meaning} |"


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 partial, 130 Ctrl-C.\n"
    group: Any = typer.main.get_command(app)
    for path, command in _leaf_commands((), group):
        usage = " ".join(_usage(p) for p in command.params if p.param_type_name == "argument")
        yield f"## `icewright {' '.join(path)}{f' {usage}' if usage else ''}`\n"
        yield f"{command.help}\n"
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        for option in options:
            yield f"- `{' '.join(option.opts)}`: {option.help}"
        if options:
            yield ""


def _usage(argument: Any) -> str:  # noqa: ANN401 - Typer's argument
    name = str(argument.metavar) if argument.required else f"[{argument.metavar}]"
    return name if argument.nargs == 1 else f"{name}..."


def _leaf_commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    if hasattr(command, "commands"):
        for name in command.list_commands(None):
            yield from _leaf_commands((*path, name), command.commands[name])
    else:
        yield path, command


if __name__ == "__main__":
    for file_name, text in pages().items():
        (Path(sys.argv[1]) / file_name).write_text(text, encoding="utf-8")
