"""Scaffolding of a complete plugin project that passes the conformance tests.

The names of a kind's hook, Protocol and conformance class are taken from the contract, the files
from ``templates``: ``all``, then ``strategy`` for kinds that have one, then the kind's own.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from gatewayd.cli.authoring.kinds import KIND_TEMPLATES, KindTemplate
from gatewayd.cli.authoring.kit import conformance_of
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import nearest
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.version import SPEC_VERSION

TEMPLATES = Path(__file__).parent / "templates"
MOST_LETTERS = 24
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_RESERVED = {
    "none": "it disables a slot",
    "auto": "it selects by the model's template",
}
_SUFFIX = ".tmpl"


class ScaffoldError(Exception):
    """The project cannot be created; the message has the reason and the remedy."""


def parse_kind(text: str) -> Kind:
    """Parse the name of a kind.

    Raises:
        ScaffoldError: there is no such kind.
    """
    kinds = [kind.value for kind in KIND_TEMPLATES]
    if text in kinds:
        return Kind(text)
    # Also finds ``kv_tier`` for ``kv-tiers``.
    near = nearest(text, kinds) or nearest(text.replace("-", "_").rstrip("s"), kinds)
    hint = f"did you mean {near}?" if near else f"there is {', '.join(kinds)}"
    raise ScaffoldError(f"unknown plugin kind {text}; {hint}")


def project_name(kind: Kind, name: str) -> str:
    """Return the distribution name of a plugin.

    Raises:
        ScaffoldError: the plugin's name is invalid.
    """
    if name in _RESERVED:
        raise ScaffoldError(f"a plugin cannot be called {name}: {_RESERVED[name]}")
    if len(name) > MOST_LETTERS:
        raise ScaffoldError(f"{name} has {len(name)} letters; at most {MOST_LETTERS} are allowed")
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "_", name.lower()).lstrip("_0123456789").rstrip("_")
        hint = f"; how about {better}?" if _NAME.fullmatch(better) else ""
        raise ScaffoldError(
            f"{name!r} is not a valid name: lowercase letters, digits and single underscores "
            f"between them are allowed, a letter first{hint}"
        )
    return f"gatewayd-{KIND_TEMPLATES[kind].short}-{name.replace('_', '-')}"


def write(kind: Kind, name: str, parent: Path) -> Path:
    """Write a project.

    Args:
        kind: of the plugin.
        name: of the plugin in the configuration.
        parent: folder in which the project's folder is created; created if missing.

    Returns:
        The project's folder.

    Raises:
        ScaffoldError: the name is not allowed or taken, the folder exists or cannot be written.
    """
    folder = parent / project_name(kind, name)
    if owners := Catalog.installed().owners(kind, name):
        raise ScaffoldError(
            f"{kind}.{name} is already offered by {owners[0].owner}, and neither of two could be "
            "used; choose another name"
        )
    # Before the folder is created: a failure leaves nothing behind.
    files = render(kind, name)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ScaffoldError(
            f"{folder} already exists; choose another name or --path, or remove it"
        ) from None
    except OSError as error:
        raise ScaffoldError(f"cannot create {folder}: {error.strerror}") from error
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def render(kind: Kind, name: str) -> dict[str, str]:
    """Render the files of a project, by path."""
    values = _template_values(kind, name)
    layers = ["all", *(["strategy"] if kind in KINDS else []), kind.value]
    files: dict[str, str] = {}
    # Files of later layers replace those of earlier ones.
    for layer in layers:
        folder = TEMPLATES / layer
        for file in sorted(folder.rglob(f"*{_SUFFIX}")):
            path = file.relative_to(folder).as_posix().removesuffix(_SUFFIX)
            text = Template(file.read_text("utf-8")).substitute(values)
            files[path.replace("src/package/", f"src/{values['package']}/")] = text
    return files


def _template_values(kind: Kind, name: str) -> dict[str, str]:
    """Return the values of the placeholders in the templates."""
    begin = KIND_TEMPLATES[kind]
    kit = conformance_of(kind)
    major, _, _ = SPEC_VERSION.partition(".")
    camel = "".join(part.capitalize() for part in name.split("_"))
    distribution = project_name(kind, name)
    values = {
        "name": name,
        "plugin": f"{kind}.{name}",
        "distribution": distribution,
        "package": distribution.replace("-", "_"),
        "class_name": camel + begin.noun,
        "settings": camel + "Settings",
        "summary": begin.summary,
        "one_line": begin.summary[0].lower() + begin.summary[1:].rstrip("."),
        "dependencies": ", ".join(f'"{each}"' for each in ("gatewayd>=0.1", *begin.requires)),
        "spec": SPEC_VERSION,
        "next_spec": str(int(major) + 1),
        "kit_module": kit.module,
        "kit_class": kit.name,
        "configuration": _configuration(kind, name, begin),
        "config_body": _config_body(f"{camel}Settings", begin),
        "metrics": "None of its own.",
        "example": _example(kind, name),
    }
    if kind is Kind.CONSOLE:
        return values
    if kind not in KINDS:
        return values | {"metrics": f"`gatewayd_{name}_ended_requests_total`, by `outcome`."}
    protocol = KINDS[kind].protocol
    is_generic = bool(getattr(protocol, "__parameters__", ()))
    return values | {
        "hook": KINDS[kind].hook,
        "protocol": protocol.__name__,
        "protocol_module": protocol.__module__,
        "protocol_type": protocol.__name__ + ("[Any]" if is_generic else ""),
        "typing_names": "TYPE_CHECKING" + (", Any" if is_generic else ""),
        "typing_any": "from typing import Any\n\n" if is_generic else "",
    }


def _config_body(settings: str, begin: KindTemplate) -> str:
    setting = begin.setting
    if setting is None:
        return (
            "from gatewayd_hooks.strategy import StrategyConfig\n\n\n"
            f'class {settings}(StrategyConfig):\n    """No settings yet."""'
        )
    return (
        "from gatewayd_hooks.strategy import StrategyConfig, setting\n\n\n"
        f"class {settings}(StrategyConfig):\n"
        '    """Settings for operators; unknown keys and bad values are errors at start."""\n\n'
        f"    {setting.name}: int = setting(\n"
        f"        {setting.default},\n"
        '        reload="restart",\n'
        f"        ge={setting.least},\n"
        f'        doc="{setting.doc}",\n'
        "    )"
    )


def _configuration(kind: Kind, name: str, begin: KindTemplate) -> str:
    if kind not in KINDS:
        return "It has no settings."
    setting = begin.setting
    # Model routers are chosen and configured by route.
    table = f"routes.NAME.{name}" if kind is Kind.MODEL_ROUTER else f"{kind}.{name}"
    if setting is None:
        return f"Table `[{table}]`: no settings."
    return (
        f"Table `[{table}]`:\n\n"
        "| key | default | meaning |\n| --- | --- | --- |\n"
        f"| `{setting.name}` | `{setting.default}` | {setting.doc} At least {setting.least}. "
        "Takes effect after a restart. |"
    )


def _example(kind: Kind, name: str) -> str:
    """Return a configuration that enables the plugin."""
    match kind:
        case Kind.OBSERVER:
            return f'[plugins]\nobservers = ["{name}"]'
        case Kind.CONSOLE:
            return f'[plugins]\nconsole = ["{name}"]'
        case Kind.LOGITS_PROCESSOR:
            return f'[{kind}]\nstrategies = ["penalties", "bias", "min_tokens", "{name}"]'
        case Kind.PROTOCOL:
            return f'[{kind}]\nstrategies = ["anthropic", "ollama", "{name}"]'
        case Kind.KV_TIER:
            return f'[{kind}]\nstrategies = ["{name}"]'
        case Kind.MODEL_BACKEND:
            return f'[model]\nbackend = "{name}"'
        case Kind.MODEL_ROUTER:
            return f'[routes.NAME]\nstrategy = "{name}"\ntargets = ["small", "large"]'
        case _:
            return f'[{kind}]\nstrategy = "{name}"'
