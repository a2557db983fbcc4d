"""A name stands for one model or route."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewayd.config.load import ConfigError, load


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[models.x]\npath = "a"\nserved_names = ["x"]', "[models.x] has the name 'x' twice"),
        (
            '[models.x]\npath = "a"\n[models.y]\npath = "b"\nserved_names = ["z", "x"]',
            "[models.x] and [models.y] both have the name 'x'",
        ),
        (
            '[model]\npath = "a"\nserved_name = "m"\n[models.m]\npath = "b"',
            "[model] and [models.m] both have the name 'm'",
        ),
        (
            '[model]\nserved_names = ["n", "n"]',
            "[model] has the name 'n' twice",
        ),
        (
            '[model]\npath = "a"\nserved_names = ["n"]\n'
            '[models.m]\npath = "b"\nserved_names = ["n"]',
            "[model] and [models.m] both have the name 'n'",
        ),
        (
            '[model]\nserved_name = "n"\n[upstreams.u]\nurl = "http://u/v1"\nmodels = { n = "x" }',
            "[model] and [upstreams.u.models] both have the name 'n'",
        ),
        (
            '[upstreams.u]\nurl = "http://u/v1"\nmodels = { n = "x" }\n'
            '[upstreams.w]\nurl = "http://w/v1"\nmodels = { n = "x" }',
            "[upstreams.u.models] and [upstreams.w.models] both have the name 'n'",
        ),
        (
            '[models.n]\npath = "a"\n[routes.n]\ntargets = ["n"]',
            "[models.n] and [routes.n] both have the name 'n'",
        ),
    ],
)
def test_a_name_stands_for_one_model(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "g.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    (problem,) = caught.value.problems
    assert problem.startswith(f"file {file}: {said}: a name stands for one model or route")
    # Names of a model that is not served, since only tables of models have paths, are free.
    file.write_text('[model]\nserved_name = "x"\n[models.x]\npath = "a"')
    assert load(file, environ={}).config.models
