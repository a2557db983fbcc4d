"""Programs that talk to a language model, over the HTTP API of a server.

``@function`` makes a program of a function whose first argument is a state; ``s += "text"`` and
``s += gen("name")`` let it grow, ``s["name"]`` reads what the model has written, ``s.fork(n)`` and
``join`` let it branch. Needs aiohttp and nothing else of the project.
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
