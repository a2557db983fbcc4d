"""Language model programs, over the HTTP API of a server.

``@function`` turns a function whose first argument is a state into a program; ``s += "text"`` and
``s += gen("name")`` append to it, ``s["name"]`` reads what the model has generated, ``s.fork(n)``
and ``join`` create and merge branches. Needs aiohttp and nothing else of the project.
"""

from gatewayd_lang.errors import GenError, LangError, ServerError, TemplateError
from gatewayd_lang.gen import gen, select
from gatewayd_lang.joined import join
from gatewayd_lang.program import Program, function
from gatewayd_lang.roles import assistant, system, user
from gatewayd_lang.server import Server, set_default_server
from gatewayd_lang.state import State
from gatewayd_lang.template import Message
from gatewayd_lang.variable import Answer

__all__ = [
    "Answer",
    "GenError",
    "LangError",
    "Message",
    "Program",
    "Server",
    "ServerError",
    "State",
    "TemplateError",
    "assistant",
    "function",
    "gen",
    "join",
    "select",
    "set_default_server",
    "system",
    "user",
]
